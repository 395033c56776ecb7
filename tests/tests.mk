# Test binaries. Every tests/unit/test_*.c is a cmocka program of its own; each runs under
# tests/run-each with its own simulated driver state and a time limit.

UNIT_SRC := $(wildcard tests/unit/test_*.c)
UNIT_BIN := $(patsubst tests/unit/%.c,$(O)/tests/unit/%,$(UNIT_SRC))
UNIT_HELPERS := $(filter-out $(UNIT_SRC),$(wildcard tests/unit/*.c))

$(O)/tests/unit/%: $(O)/tests/unit/%.o $(call obj,$(UNIT_HELPERS)) $(LIBPC)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(LIB_PROTOBUF) $(LIB_YAML) -lcmocka -ldl -lm

$(UNIT_BIN:%=%.o) $(call obj,$(UNIT_HELPERS)): | $(GEN_C)

unit: $(UNIT_BIN) $(SIM) ## Run the unit tests on the simulated driver
	$(Q)tests/run-each $(O) $(UNIT_BIN)

.PHONY: unit

include tests/fuzz/fuzz.mk

# The suites of `make test`, in order. A suite prints what it ran; tests/run-all counts.
SUITES := unit
suites:
	@echo $(SUITES)

# What the tests of this checkout print, counted: the last line is "N passed, N failed, N skipped".
test: ## Run every test on the simulated driver (installs what is missing on Debian and Ubuntu)
	@$(MAKE) --no-print-directory deps-installed
	$(Q)tests/run-all $(O)

.PHONY: suites test

include alloc/shim/shim.mk
include tests/demo/demo.mk
include tests/chaos/chaos.mk
include tests/conformance/conformance.mk
include tests/gpu/gpu.mk
include tests/drift/drift.mk
include tests/integration/integration.mk
include tests/plugin/plugin_tests.mk

# The demo, the kill storm and the shim's symbols as suites of `make test`: on the simulated driver, counted.
SUITES += demo-check storm-check
STORM_CHECK_TENANTS ?= 24

demo-check: $(BIN) $(SIM) $(O)/tests/demo/demo
	$(Q)POOLCAP_SIM=1 tests/with-driver $(O) $(O)/tests/demo/demo 2>&1 | tee -a "$${POOLCAP_TEST_LOG:-/dev/null}"; \
	  exit $${PIPESTATUS[0]}

storm-check: $(BIN) $(SIM) $(O)/tests/chaos/storm
	$(Q)POOLCAP_SIM=1 POOLCAP_CHECK=1 tests/with-driver $(O) $(O)/tests/chaos/storm $(STORM_CHECK_TENANTS) 2>&1 \
	  | tee -a "$${POOLCAP_TEST_LOG:-/dev/null}"; exit $${PIPESTATUS[0]}

.PHONY: demo-check storm-check

bench: $(BIN) $(SIM) $(BENCH_BIN) ## Native and ours side by side: a table, and bench.jsonl under build/
	$(Q)OUT=$(CURDIR)/$(O) tests/with-driver $(O) tests/bench/run $(CURDIR)/$(O)

.PHONY: bench
