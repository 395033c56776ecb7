# The plugin's tests: each tests/plugin/test_*.c is a cmocka program, linked with the plugin's parts.

PLUGIN_TEST_SRC := $(wildcard tests/plugin/test_*.c)
PLUGIN_TEST_BIN := $(patsubst tests/plugin/%.c,$(O)/tests/plugin/%,$(PLUGIN_TEST_SRC))
PLUGIN_TEST_HELPERS := $(filter-out $(PLUGIN_TEST_SRC),$(wildcard tests/plugin/*.c))

$(PLUGIN_TEST_BIN:%=%.o) $(call obj,$(PLUGIN_TEST_HELPERS)): | $(GEN_C)

$(O)/tests/plugin/%: $(O)/tests/plugin/%.o $(call obj,$(PLUGIN_TEST_HELPERS)) $(LIBPLUGIN) $(LIBPC)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(LIB_PLUGIN) $(LIB_PROTOBUF) $(LIB_YAML) -lcmocka -ldl

# gRPC core is not built with the thread sanitizer, which then sees no order in what passes through it; what has no gRPC in
# it has one thread. So that sanitizer has nothing to say here.
PLUGIN_TEST_RUN := $(if $(filter thread,$(SANITIZER)),\
  $(filter-out %_rpc %_pod_resources $(O)/tests/plugin/test_device_%,$(PLUGIN_TEST_BIN)),$(PLUGIN_TEST_BIN))

plugin-test: $(PLUGIN_TEST_RUN) ## Run the plugin's tests
	$(Q)tests/run-each $(O) $(PLUGIN_TEST_RUN)

SUITES += plugin-test
.PHONY: plugin-test
