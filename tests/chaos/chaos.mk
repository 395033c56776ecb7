# make storm: the kill storm. TENANTS processes (200 by default; make test runs 40).

TENANTS ?= 200

$(O)/tests/chaos/storm: $(O)/tests/chaos/storm.o $(O)/tests/demo/node.o $(LIBPC) $(O)/lib/libpoolcap.a
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $(filter %.o,$^) $(O)/lib/libpoolcap.a $(LIBPC) $(ALL_LDFLAGS) $(LIB_PROTOBUF) $(LIB_YAML) -ldl

storm: $(BIN) $(SIM) $(O)/tests/chaos/storm ## Kill tenants at every point of their lives, and watch the card
	$(Q)tests/with-driver $(O) $(O)/tests/chaos/storm $(TENANTS)

.PHONY: storm
