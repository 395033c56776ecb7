# The tests of poolcapd: real processes against the real daemon, on the simulated driver.

BROKER_TEST_SRC := $(wildcard tests/integration/test_broker_*.c)
BROKER_TEST_BIN := $(patsubst tests/integration/%.c,$(O)/tests/integration/%,$(BROKER_TEST_SRC))
BROKER_TEST_PARTS := $(call obj,tests/integration/broker_actor.c tests/integration/broker_daemon.c)

$(O)/tests/integration/test_broker_%: $(O)/tests/integration/test_broker_%.o $(BROKER_TEST_PARTS) $(LIBPC)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(LIB_PROTOBUF) $(LIB_YAML) -lcmocka -ldl

$(BROKER_TEST_BIN:%=%.o) $(BROKER_TEST_PARTS): | $(GEN_C)

integration: $(BROKER_TEST_BIN) $(BIN) $(SIM) ## Test poolcapd with real processes on the simulated driver
	$(Q)tests/run-each $(O) $(BROKER_TEST_BIN)

.PHONY: integration
SUITES += integration
