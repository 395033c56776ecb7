# The conformance suite: what poolcap relies on, on the simulated driver or on a real one. It needs
# no library but libc, so the binary can be taken to a machine with a GPU and run there.

CONFORMANCE := $(O)/tests/conformance/conformance

$(CONFORMANCE): $(call obj,$(call src,tests/conformance)) $(BASE_O) $(DRIVER_O)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) -ldl

conformance: $(CONFORMANCE) $(SIM) sim-exports ## Run the conformance suite on the simulated driver
	$(Q)tests/conformance/run-on-sim $(O) $(CONFORMANCE)

# The simulated libraries must export the tables' functions and nothing else.
sim-exports: $(SIM)
	$(Q)tests/sim/check-exports '$(CC)' $(O)/sim

SUITES += conformance

.PHONY: conformance sim-exports
