# Fuzzing. Every tests/fuzz/fuzz_*.c is a libFuzzer harness of its own, by clang with address and undefined sanitizers;
# the code under test is compiled once for all of them, in build/fuzz, into an archive. One harness, for longer:
#
#   make fuzz FUZZ_SECONDS=60 FUZZ_ONLY=fuzz_ledger
#
# Inputs that found new code stay in build/fuzz/corpus/HARNESS; a crash leaves build/fuzz/crash/HARNESS-* and fails.
# tests/fuzz/corpus/HARNESS, where there is one, is read as a seed and never written.

FUZZ_CC ?= clang
FUZZ_SECONDS ?= 10
FUZZ_ONLY ?=
FO := build/fuzz
FUZZ_SAN := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
# Of GCC's warnings the build has had its say; clang here is only the fuzzer's compiler.
FUZZ_CFLAGS := -std=gnu11 -g -O1 -pthread -D_GNU_SOURCE -DPOOLCAP_VERSION='"$(VERSION)"' -I. -I$(FO)/gen -w \
               -MMD -MP $(FUZZ_SAN)

FUZZ_SRC := $(call src,alloc/base alloc/options alloc/driver alloc/pool alloc/ledger proto) \
            $(filter-out %/main.c %/poolcapctl.c,$(call src,alloc/broker)) \
            $(addprefix plugin/,kubelet/base64.c kubelet/checkpoint.c kubelet/claims.c text/text.c)
FUZZ_GEN_C := $(patsubst proto/%.proto,$(FO)/gen/proto/%.pb-c.c,$(PROTOS))
FUZZ_O := $(patsubst %.c,$(FO)/%.o,$(FUZZ_SRC)) $(FUZZ_GEN_C:.c=.o)
FUZZ_HARNESS := $(patsubst tests/fuzz/%.c,$(FO)/bin/%,$(wildcard tests/fuzz/$(or $(FUZZ_ONLY),fuzz_*).c))

$(FO)/gen/proto/%.pb-c.c $(FO)/gen/proto/%.pb-c.h &: proto/%.proto
	$(call say,PROTO,$<)
	@mkdir -p $(FO)/gen
	$(Q)protoc-c --c_out=$(FO)/gen $<

$(FO)/gen/%.o: $(FO)/gen/%.c tests/fuzz/fuzz.mk
	$(call say,FUZZCC,$<)
	$(Q)$(FUZZ_CC) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link -c -o $@ $<

$(FO)/%.o: %.c tests/fuzz/fuzz.mk | $(FUZZ_GEN_C)
	$(call say,FUZZCC,$<)
	@mkdir -p $(@D)
	$(Q)$(FUZZ_CC) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link -c -o $@ $<

$(FO)/libpc.a: $(FUZZ_O)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(FO)/bin/%: $(FO)/tests/fuzz/%.o $(FO)/libpc.a
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(FUZZ_CC) $(FUZZ_SAN) -fsanitize=fuzzer -pthread -o $@ $^ -lprotobuf-c -lyaml -ljansson -ldl -lm

fuzz: $(FUZZ_HARNESS) ## Run each fuzzer for FUZZ_SECONDS (10)
	$(Q)tests/fuzz/run-fuzz $(FO) $(FUZZ_SECONDS) $(FUZZ_HARNESS)

-include $(shell find $(FO) -name '*.d' 2>/dev/null)

.PHONY: fuzz
