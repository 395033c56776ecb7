# poolcap: `make` builds, `make demo` shows the main job, `make test` runs the tests.
# Every target: see `make help`. V=1 shows the commands.

.DEFAULT_GOAL := all
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/bash

VERSION := 0.1.0
PREFIX ?= /usr/local
DESTDIR ?=
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
SANITIZER ?=
V ?= 0
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-6s %s\n' '$(1)' '$(2)')

# Each set of flags has a build folder of its own; the stamp below rebuilds when flags change.
O := build$(if $(SANITIZER),/$(SANITIZER))

CFLAGS ?= -O2 -g
WARN := -Wall -Wextra -Werror -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
        -Wpointer-arith -Wwrite-strings -Wundef -Wformat=2 -Wimplicit-fallthrough
PC_CFLAGS := -std=gnu11 -fPIC -fvisibility=hidden -fno-common -pthread -I. -I$(O)/gen -D_GNU_SOURCE \
             -DPOOLCAP_VERSION='"$(VERSION)"' $(WARN) -MMD -MP
PC_LDFLAGS := -pthread
ifneq ($(SANITIZER),)
PC_CFLAGS += -fsanitize=$(SANITIZER) -fno-omit-frame-pointer -fno-sanitize-recover=all
PC_LDFLAGS += -fsanitize=$(SANITIZER)
ifeq ($(SANITIZER),thread)
# The page's sequence lock has fences, which this sanitizer does not model; every field it guards is atomic.
PC_CFLAGS += -Wno-tsan
endif
else
PC_CFLAGS += -D_FORTIFY_SOURCE=2 -fstack-protector-strong
PC_LDFLAGS += -Wl,-z,relro,-z,now
endif
ALL_CFLAGS = $(PC_CFLAGS) $(CFLAGS) $(EXTRA_CFLAGS)
ALL_LDFLAGS = $(PC_LDFLAGS) $(LDFLAGS)

# Needed from the system. STATIC_DEPS=1 links protobuf-c and libyaml into the binaries (gpu-bundle).
STATIC_DEPS ?= 0
ifeq ($(STATIC_DEPS),1)
LIB_PROTOBUF := -Wl,-Bstatic -lprotobuf-c -Wl,-Bdynamic
LIB_YAML := -Wl,-Bstatic -lyaml -Wl,-Bdynamic
else
LIB_PROTOBUF := -lprotobuf-c
LIB_YAML := -lyaml
endif

src = $(wildcard $(addsuffix /*.c,$(1)))
obj = $(patsubst %.c,$(O)/%.o,$(1))

PROTOS := $(wildcard proto/*.proto)
GEN_C := $(patsubst proto/%.proto,$(O)/gen/proto/%.pb-c.c,$(PROTOS))
GEN_O := $(GEN_C:.c=.o)
# What poolcapd and the shims speak; the rest is the plugin's.
WIRE_GEN_O := $(O)/gen/proto/poolcap.pb-c.o $(O)/gen/proto/admin.pb-c.o
PLUGIN_GEN_O := $(filter-out $(WIRE_GEN_O),$(GEN_O))

BASE_O := $(call obj,$(call src,alloc/base))
DRIVER_O := $(call obj,$(call src,alloc/driver))
POOL_O := $(call obj,$(call src,alloc/pool))
LEDGER_O := $(call obj,$(call src,alloc/ledger))
WIRE_O := $(call obj,$(call src,proto)) $(WIRE_GEN_O)
OPTIONS_O := $(call obj,$(call src,alloc/options))
BROKER_O := $(call obj,$(filter-out %/main.c %/poolcapctl.c,$(call src,alloc/broker)))
SHIM_O := $(call obj,$(call src,alloc/shim))

LIBPC := $(O)/libpc.a
SIM := $(O)/sim/libcuda.so.1 $(O)/sim/libnvidia-ml.so.1
SHIM := $(O)/lib/libpoolcap.so $(O)/lib/libpoolcap.a
BIN := $(O)/bin/poolcapd $(O)/bin/poolcapctl
PLUGIN := $(O)/bin/poolcap-plugin

include plugin/plugin.mk
include tests/tests.mk

all: $(BIN) $(SHIM) $(SIM) ## Build the daemons, the shim and the simulated driver

$(O)/flags: FORCE
	@mkdir -p $(O)
	@echo '$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(STATIC_DEPS)' | cmp -s - $@ || echo '$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(STATIC_DEPS)' > $@
FORCE:

$(O)/%.o: %.c $(O)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -c -o $@ $<

$(O)/gen/%.o: $(O)/gen/%.c $(O)/flags
	$(call say,CC,$<)
	$(Q)$(CC) $(ALL_CFLAGS) -w -c -o $@ $<

# One run makes both files; the generated header is needed before anything that includes it.
$(O)/gen/proto/%.pb-c.c $(O)/gen/proto/%.pb-c.h &: proto/%.proto
	$(call say,PROTO,$<)
	@mkdir -p $(O)/gen
	$(Q)protoc-c --c_out=$(O)/gen $<

$(WIRE_O) $(BROKER_O) $(SHIM_O): | $(GEN_C)

$(LIBPC): $(BASE_O) $(OPTIONS_O) $(DRIVER_O) $(POOL_O) $(LEDGER_O) $(WIRE_O) $(BROKER_O)
	$(call say,AR,$@)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $^

$(O)/bin/poolcapd: $(O)/alloc/broker/main.o $(LIBPC)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(LIB_PROTOBUF) $(LIB_YAML) -ldl

$(O)/bin/poolcapctl: $(O)/alloc/broker/poolcapctl.o $(LIBPC)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(LIB_PROTOBUF) $(LIB_YAML) -ldl

# The shim: one object file with hidden symbols, so that nothing of ours or of protobuf-c can meet
# the program's own names. The archive is made from the same object.
SHIM_PARTS := $(SHIM_O) $(BASE_O) $(DRIVER_O) $(WIRE_O) $(POOL_O)
$(O)/lib/libpoolcap.so: $(SHIM_PARTS) alloc/shim/libpoolcap.map
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -Wl,-soname,libpoolcap.so.0 -Wl,--version-script=alloc/shim/libpoolcap.map \
	  -Wl,--exclude-libs,ALL -Wl,--gc-sections -o $@ $(SHIM_PARTS) $(ALL_LDFLAGS) \
	  -Wl,-Bstatic -lprotobuf-c -Wl,-Bdynamic
	@ln -sf libpoolcap.so $(@D)/libpoolcap.so.0

$(O)/lib/libpoolcap.a: $(SHIM_PARTS)
	$(call say,AR,$@)
	@mkdir -p $(@D)
	$(Q)ld -r -o $(O)/lib/poolcap.o $(SHIM_PARTS) -L$(dir $(shell $(CC) -print-file-name=libprotobuf-c.a)) -Bstatic -lprotobuf-c
	$(Q)objcopy --wildcard --keep-global-symbol='poolcap_*' $(O)/lib/poolcap.o
	$(Q)rm -f $@ && ar rcs $@ $(O)/lib/poolcap.o

$(O)/sim/libcuda.so.1: $(call obj,$(filter-out %nvml.c,$(call src,tests/sim)))
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ $(ALL_LDFLAGS)

$(O)/sim/libnvidia-ml.so.1: $(call obj,$(filter-out %cuda.c,$(call src,tests/sim)))
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -Wl,-soname,libnvidia-ml.so.1 -o $@ $^ $(ALL_LDFLAGS)

# ---- what the build needs ----

# program or file : Debian package
DEPS := protoc-c:protobuf-c-compiler /usr/include/protobuf-c/protobuf-c.h:libprotobuf-c-dev \
        /usr/include/yaml.h:libyaml-dev /usr/include/cmocka.h:libcmocka-dev $(CC):gcc pkg-config:pkg-config \
        /usr/include/grpc/grpc.h:libgrpc-dev /usr/include/jansson.h:libjansson-dev \
        /usr/include/microhttpd.h:libmicrohttpd-dev /usr/include/*/curl/curl.h:libcurl4-openssl-dev

deps: ## Say which packages are missing
	@missing=$$(scripts=1; for d in $(DEPS); do need=$${d%%:*}; \
	  case $$need in /*) ls $$need >/dev/null 2>&1;; *) command -v $$need >/dev/null;; esac || echo $${d##*:}; done); \
	if [ -z "$$missing" ]; then \
	  if pkg-config --atleast-version=1.4.1 libprotobuf-c; then echo 'nothing is missing'; \
	  else echo 'protobuf-c is older than 1.4.1, which has the fixes of CVE-2022-33070 and CVE-2022-48468'; exit 1; fi; \
	else echo 'missing packages (Debian and Ubuntu names):' $$missing; exit 1; fi

# On Debian and Ubuntu, as root or with sudo, the two commands of the README need no other step.
deps-installed:
	@$(MAKE) -s --no-print-directory deps >/dev/null 2>&1 || { \
	  command -v apt-get >/dev/null || { $(MAKE) -s --no-print-directory deps; exit 1; }; \
	  echo '  DEPS   installing what is missing with apt-get'; \
	  sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	  $$sudo apt-get -qq update >/dev/null && \
	  DEBIAN_FRONTEND=noninteractive $$sudo apt-get -qq install -y $(foreach d,$(DEPS),$(lastword $(subst :, ,$(d)))) >/dev/null && \
	  $(MAKE) -s --no-print-directory deps >/dev/null; }

install: all $(O)/lib/poolcap.pc ## Install under PREFIX (default /usr/local), below DESTDIR
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin lib lib/pkgconfig include)
	install -m 0755 $(BIN) $(DESTDIR)$(PREFIX)/bin
	install -m 0755 $(O)/lib/libpoolcap.so $(DESTDIR)$(PREFIX)/lib/libpoolcap.so.$(VERSION)
	ln -sf libpoolcap.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libpoolcap.so.0
	ln -sf libpoolcap.so.0 $(DESTDIR)$(PREFIX)/lib/libpoolcap.so
	install -m 0644 $(O)/lib/libpoolcap.a $(DESTDIR)$(PREFIX)/lib
	install -m 0644 alloc/shim/poolcap.h $(DESTDIR)$(PREFIX)/include
	install -m 0644 $(O)/lib/poolcap.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig

SOURCES := $(shell git ls-files '*.c' '*.h' 2>/dev/null)

format: ## Format the C sources
	$(Q)clang-format -i $(SOURCES)

check: ## Formatting, whitespace, long lines and functions
	$(Q)tests/check-style $(SOURCES)

clean: ## Remove what was built
	$(Q)rm -rf build

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

-include $(shell find $(O) -name '*.d' -not -path '$(O)/address/*' 2>/dev/null)

.PHONY: all clean help deps deps-installed install format check FORCE
.SECONDARY:
