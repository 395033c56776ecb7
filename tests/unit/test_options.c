/* Settings by a table: names, types, order of precedence, and what people read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "alloc/options/options.h"
#include "alloc/options/yaml.h"

#define ARG(text) ((char *)(uintptr_t)(text))

enum colour { RED, GREEN };
static const char *const colours[] = {"red", "green", NULL};

struct config {
    char name[8], some_path[32];
    uint64_t how_much;
    bool is_on;
    enum colour colour;
    unsigned extra;
};

static const struct pc_option rows[] = {
    PC_OPTION(struct config, name, "name", TEXT, "none", "a name"),
    PC_OPTION(struct config, some_path, "somePath", PATH, "/a", "a path"),
    PC_OPTION(struct config, how_much, "howMuchMemory", BYTES, "1Gi", "an amount"),
    PC_OPTION(struct config, is_on, "isOn", BOOL, "false", "a switch"),
    PC_OPTION_OF(struct config, colour, "colour", colours, "green", "a choice"),
};

static enum pc_status read_extra(struct pc_yaml *yaml, const char *key, int value, void *config, bool *known)
{
    struct config *c = config;
    *known = strcmp(key, "extra") == 0;
    if (*known && pc_yaml_empty(yaml, value))
        return pc_yaml_refuse(yaml, value, "extra is empty");
    c->extra += *known;
    return PC_OK;
}

static const struct pc_option_table table = {.program = "test",
                                             .summary = "Tests.",
                                             .more = "More.\n",
                                             .option = rows,
                                             .options = PC_ARRAY_LEN(rows),
                                             .other = read_extra};

static enum pc_status parse(const char *text, struct config *config, struct pc_error *err)
{
    memset(config, 0, sizeof *config);
    pc_options_defaults(&table, config);
    return pc_options_parse(&table, "f", text, strlen(text), config, err);
}

static void test_file(void **state)
{
    (void)state;
    struct config c;
    struct pc_error err;
    assert_int_equal(parse("", &c, &err), PC_OK);
    assert_string_equal(c.name, "none");
    assert_string_equal(c.some_path, "/a");
    assert_int_equal(c.how_much, PC_GIB);
    assert_false(c.is_on);
    assert_int_equal(c.colour, GREEN);
    assert_int_equal(parse("# nothing\n", &c, &err), PC_OK);
    assert_int_equal(
        parse("name: a\nsomePath: ''\nhowMuchMemory: 32Mi\nisOn: true\ncolour: red\nextra: [1, 2]\n", &c, &err), PC_OK);
    assert_string_equal(c.name, "a");
    assert_string_equal(c.some_path, "");
    assert_int_equal(c.how_much, 32 * PC_MIB);
    assert_true(c.is_on);
    assert_int_equal(c.colour, RED);
    assert_int_equal(c.extra, 1);
}

static void assert_refused(const char *text, const char *says)
{
    struct config c;
    struct pc_error err = {.text = ""};
    if (parse(text, &c, &err) != PC_ERR_INVALID || strstr(err.text, says) == NULL)
        fail_msg("%s: \"%s\" instead of \"%s\"", text, err.text, says);
    assert_int_equal(parse(text, &c, NULL), PC_ERR_INVALID); /* nobody needs the text */
}

static void test_bad_files(void **state)
{
    (void)state;
    assert_refused("isOn: true\nnope: 1\n", "f:2:1: unknown key \"nope\"; --help lists");
    assert_refused("name: [a]\n", "f:1:7: name is a list, and must be a single value");
    assert_refused("- name\n", "f:1:1: the file is a list, and must be a mapping (key: value)");
    assert_refused("name: a\nname: b\n", "f:2:1: \"name\" is given twice");
    assert_refused("name: 12345678\n", "f:1:7: name has 8 bytes; at most 7 are allowed");
    assert_refused("somePath: a/b\n", "f:1:11: somePath \"a/b\" is not an absolute path");
    assert_refused("howMuchMemory: 4GiB\n", "f:1:16: ");
    assert_refused("isOn: yes\n", "f:1:7: isOn \"yes\" is neither true nor false");
    assert_refused("colour: blue\n", "f:1:9: colour \"blue\" is not one of red, green");
    assert_refused("extra:\n", "f:1:7: extra is empty");
    assert_refused("name: \"a\\0b\"\n", "f:1:7: name has a NUL byte in it");
    assert_refused("a: b: c\n", "f:1:5: mapping values");
}

static enum pc_status count_pair(struct pc_yaml *yaml, const char *key, int key_node, int value, void *arg)
{
    unsigned *count = arg;
    (void)yaml;
    (void)key;
    (void)key_node;
    (void)value;
    ++*count;
    return PC_OK;
}

/* Each key is compared with all before it, so a hostile file must not have many. */
static void test_many_keys(void **state)
{
    (void)state;
    for (unsigned keys = 32; keys <= 33; keys++) {
        char text[33 * 8] = "";
        size_t used = 0;
        struct pc_yaml yaml;
        struct pc_error err;
        unsigned count = 0;
        for (unsigned i = 0; i < keys; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "k%u: 1\n", i);
        assert_int_equal(pc_yaml_load(&yaml, "f", text, used, &err), PC_OK);
        enum pc_status status = pc_yaml_each(&yaml, 1, "it", count_pair, &count);
        assert_int_equal(count, 32);
        assert_int_equal(status, keys == 32 ? PC_OK : PC_ERR_INVALID);
        if (keys == 33)
            assert_string_equal(err.text, "f:33:1: more than 32 keys in one mapping");
        pc_yaml_free(&yaml);
    }
}

static void make_file(char path[32], const char *text)
{
    strcpy(path, "/tmp/poolcap-options-XXXXXX");
    pc_auto_fd int fd = mkstemp(path);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static enum pc_status load(char **argv, struct config *c, enum pc_option_action *action, struct pc_error *err)
{
    const char *file;
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    memset(c, 0, sizeof *c);
    return pc_options_load(&table, argc, argv, c, &file, action, err);
}

static void test_precedence(void **state)
{
    (void)state;
    struct config c;
    struct pc_error err;
    enum pc_option_action action;
    char path[32];
    make_file(path, "name: file\nsomePath: /file\nhowMuchMemory: 2Gi\ncolour: red\n");
    setenv("POOLCAP_SOME_PATH", "/variable", 1);
    setenv("POOLCAP_HOW_MUCH_MEMORY", "3Gi", 1);
    setenv("POOLCAP_CONFIG", path, 1);
    char *argv[] = {ARG("p"), ARG("--how-much-memory=4Gi"), ARG("--is-on"), ARG("--name"), ARG("flag"), NULL};
    assert_int_equal(load(argv, &c, &action, &err), PC_OK);
    assert_int_equal(action, PC_OPTIONS_RUN);
    assert_string_equal(c.name, "flag");
    assert_string_equal(c.some_path, "/variable");
    assert_int_equal(c.how_much, 4 * PC_GIB);
    assert_true(c.is_on);
    assert_int_equal(c.colour, RED);
    char *off[] = {ARG("p"), ARG("--is-on=false"), ARG("--some-path="), ARG("--config="), NULL};
    assert_int_equal(load(off, &c, &action, &err), PC_OK);
    assert_false(c.is_on);
    assert_string_equal(c.some_path, "");
    assert_int_equal(c.colour, GREEN); /* no file */
    setenv("POOLCAP_HOW_MUCH_MEMORY", "lots", 1);
    assert_int_equal(load(off, &c, &action, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "POOLCAP_HOW_MUCH_MEMORY"));
    char *bad[] = {ARG("p"), ARG("--colour=blue"), NULL};
    unsetenv("POOLCAP_HOW_MUCH_MEMORY");
    assert_int_equal(load(bad, &c, &action, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "--colour \"blue\" is not one of red, green"));
    unsetenv("POOLCAP_SOME_PATH");
    unsetenv("POOLCAP_CONFIG");
    unlink(path);
}

static void test_actions(void **state)
{
    (void)state;
    static const struct {
        const char *flag;
        enum pc_option_action action;
    } flags[] = {{"--help", PC_OPTIONS_HELP},
                 {"-h", PC_OPTIONS_HELP},
                 {"--version", PC_OPTIONS_VERSION},
                 {"--check", PC_OPTIONS_CHECK},
                 {"--docs", PC_OPTIONS_DOCS}};
    struct config c;
    struct pc_error err;
    enum pc_option_action action;
    for (size_t i = 0; i < PC_ARRAY_LEN(flags); i++) {
        char *argv[] = {ARG("p"), ARG(flags[i].flag), NULL};
        assert_int_equal(load(argv, &c, &action, &err), PC_OK);
        assert_int_equal(action, flags[i].action);
    }
    char *unknown[] = {ARG("p"), ARG("--nope=1"), NULL};
    assert_int_equal(load(unknown, &c, &action, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "unknown argument \"--nope=1\"; --help lists"));
    char *prefix[] = {ARG("p"), ARG("--names=1"), NULL};
    assert_int_equal(load(prefix, &c, &action, &err), PC_ERR_INVALID);
    char *missing[] = {ARG("p"), ARG("--name"), NULL};
    assert_int_equal(load(missing, &c, &action, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "--name needs a value"));
    char *nofile[] = {ARG("p"), ARG("--config"), ARG("/nonexistent/x"), NULL};
    assert_int_equal(load(nofile, &c, &action, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "/nonexistent/x"));
}

/* What a function prints on stdout. */
static void capture(void (*print)(const struct pc_option_table *), char *out, size_t size)
{
    FILE *f = tmpfile();
    fflush(stdout);
    int kept = dup(1);
    dup2(fileno(f), 1);
    print(&table);
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    rewind(f);
    out[fread(out, 1, size - 1, f)] = '\0';
    fclose(f);
}

static void test_for_people(void **state)
{
    (void)state;
    char out[4096];
    capture(pc_options_usage, out, sizeof out);
    assert_non_null(strstr(out, "Usage: test [--config FILE]"));
    assert_non_null(strstr(out, "--how-much-memory, POOLCAP_HOW_MUCH_MEMORY, howMuchMemory\n"));
    assert_non_null(strstr(out, "a choice; red, green (default: green)"));
    assert_non_null(strstr(out, "\nMore.\n"));
    capture(pc_options_docs, out, sizeof out);
    assert_non_null(strstr(out, "| `somePath` | `--some-path` | `POOLCAP_SOME_PATH` | path | `/a` | a path |\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),       cmocka_unit_test(test_bad_files), cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_precedence), cmocka_unit_test(test_actions),   cmocka_unit_test(test_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
