# GPU machines seldom have build packages: `make gpu-bundle` makes one folder that needs only libc and the driver, and
# `make gpu-check` (or BUNDLE/run on the other machine) runs it.

BUNDLE := build/bundle
BUNDLE_BIN := bin/poolcapd bin/poolcapctl tests/conformance/conformance tests/demo/demo tests/demo/big tests/chaos/storm \
              tests/bench/bench_shim_pair tests/bench/bench_broker

gpu-bundle: ## Make build/bundle: everything for a GPU machine, with protobuf-c and libyaml linked in
	$(Q)$(MAKE) --no-print-directory STATIC_DEPS=1 $(addprefix $(O)/,$(BUNDLE_BIN)) $(SHIM)
	$(Q)rm -rf $(BUNDLE) && mkdir -p $(BUNDLE)/lib
	$(Q)for f in $(BUNDLE_BIN); do install -D -s -m 0755 $(O)/$$f $(BUNDLE)/$$f; done
	$(Q)cp $(O)/lib/libpoolcap.so $(BUNDLE)/lib/ && cp tests/gpu/run $(BUNDLE)/run && cp tests/bench/run $(BUNDLE)/bench
	$(Q)for f in $(BUNDLE_BIN); do if ldd $(BUNDLE)/$$f | grep -E 'protobuf|yaml'; then \
	  echo "$$f needs more than libc"; exit 1; fi; done
	@du -sh $(BUNDLE) | sed 's/^/  BUNDLE /'

gpu-check: ## Run the bundle on this machine's GPU
	$(Q)test -x $(BUNDLE)/run || $(MAKE) --no-print-directory gpu-bundle
	$(Q)$(BUNDLE)/run $(SUITE)

.PHONY: gpu-bundle gpu-check
