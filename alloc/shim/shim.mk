# libpoolcap: its tests' link rules, the check of its symbols, and its pkg-config file.

# Tests that look inside link the objects; the tests of the finished library open it as a program would.
$(O)/tests/unit/test_shim_%: $(O)/tests/unit/test_shim_%.o $(SHIM_O) $(call obj,$(UNIT_HELPERS)) $(LIBPC)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(LIB_PROTOBUF) $(LIB_YAML) -lcmocka -ldl -lm

INTEGRATION_SRC := $(wildcard tests/integration/test_shim_*.c)
INTEGRATION_BIN := $(patsubst tests/integration/%.c,$(O)/tests/integration/%,$(INTEGRATION_SRC))
INTEGRATION_HELPERS := $(call obj,$(filter-out $(wildcard tests/integration/test_*.c),$(wildcard tests/integration/*.c)) \
  tests/demo/node.c tests/demo/puppet.c)

$(O)/tests/integration/test_shim_%: $(O)/tests/integration/test_shim_%.o $(INTEGRATION_HELPERS) $(SHIM_O) $(LIBPC)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(LIB_PROTOBUF) $(LIB_YAML) -lcmocka -ldl -lm

$(INTEGRATION_BIN:%=%.o) $(INTEGRATION_HELPERS): | $(GEN_C)

shim-integration: $(INTEGRATION_BIN) $(BIN) $(SIM) ## Test the shim against poolcapd on the simulated driver
	$(Q)tests/run-each $(O) $(INTEGRATION_BIN)

shim-symbols: $(O)/lib/libpoolcap.so ## Check what libpoolcap.so needs and exports
	$(Q)alloc/shim/check-symbols $< | tee -a "$${POOLCAP_TEST_LOG:-/dev/null}"; exit $${PIPESTATUS[0]}

shim-steady: $(BIN) $(SIM) $(O)/tests/bench/bench_shim_pair ## Count system calls and instructions of an allocation
	$(Q)tests/integration/shim-steady $(O) | tee -a "$${POOLCAP_TEST_LOG:-/dev/null}"; exit $${PIPESTATUS[0]}

BENCH_O := $(O)/tests/bench/bench.o
BENCH_BIN := $(O)/tests/bench/bench_shim_pair $(O)/tests/bench/bench_broker
$(BENCH_BIN): $(O)/tests/bench/%: $(O)/tests/bench/%.o $(BENCH_O) $(SHIM_O) $(LIBPC)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(LIB_PROTOBUF) $(LIB_YAML) -ldl -lm

# One object for every program that looks: the makefile's own prefix goes in at install.
$(O)/lib/poolcap.pc: alloc/shim/poolcap.pc.in FORCE
	@mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@VERSION@|$(VERSION)|g' $< > $@

.PHONY: shim-integration shim-symbols shim-steady

# The symbols and instructions of a sanitizer's build are its run-time's, not ours.
SUITES += shim-integration $(if $(SANITIZER),,shim-symbols shim-steady)
