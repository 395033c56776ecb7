# poolcap-plugin: the device plugin. Its messages and libraries stay out of poolcapd and of the shim.

LIB_PLUGIN := -lgrpc -lgpr -lcurl -ljansson -lmicrohttpd
PLUGIN_C := $(wildcard plugin/*.c) $(call src,plugin/text plugin/rpc plugin/kubelet plugin/api plugin/daemon \
            plugin/placement plugin/node plugin/metrics)
# main.o alone is not for tests.
PLUGIN_MAIN_O := $(O)/plugin/main.o
PLUGIN_PARTS_O := $(filter-out $(PLUGIN_MAIN_O),$(call obj,$(PLUGIN_C)))

$(PLUGIN_PARTS_O) $(PLUGIN_MAIN_O): | $(GEN_C)

LIBPLUGIN := $(O)/libplugin.a
$(LIBPLUGIN): $(PLUGIN_PARTS_O) $(PLUGIN_GEN_O)
	$(call say,AR,$@)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $^

$(O)/bin/poolcap-plugin: $(PLUGIN_MAIN_O) $(LIBPLUGIN) $(LIBPC)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(LIB_PLUGIN) $(LIB_PROTOBUF) $(LIB_YAML) -ldl
