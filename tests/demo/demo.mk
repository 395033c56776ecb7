# make demo: see tests/demo/demo.c. On the real GPU where there is one, else on the simulated driver.

DEMO_PARTS := $(call obj,tests/demo/node.c tests/demo/puppet.c)
$(DEMO_PARTS) $(O)/tests/demo/demo.o $(O)/tests/chaos/storm.o: | $(GEN_C)

$(O)/tests/demo/demo: $(O)/tests/demo/demo.o $(DEMO_PARTS) $(LIBPC) $(O)/lib/libpoolcap.a
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $(filter %.o,$^) $(O)/lib/libpoolcap.a $(LIBPC) $(ALL_LDFLAGS) $(LIB_PROTOBUF) $(LIB_YAML) -ldl

demo: ## Show the main job, and check it
	@$(MAKE) --no-print-directory deps-installed
	@$(MAKE) --no-print-directory -j$(shell nproc) $(BIN) $(SIM) $(O)/tests/demo/demo
	$(Q)tests/with-driver $(O) $(O)/tests/demo/demo

.PHONY: demo

$(O)/tests/demo/big.o: | $(GEN_C)
$(O)/tests/demo/big: $(O)/tests/demo/big.o $(DEMO_PARTS) $(LIBPC) $(O)/lib/libpoolcap.a
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $(filter %.o,$^) $(O)/lib/libpoolcap.a $(LIBPC) $(ALL_LDFLAGS) $(LIB_PROTOBUF) $(LIB_YAML) -ldl
