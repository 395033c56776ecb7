/*
 * Builds the table of claims of pod_resources.h. All its texts and arrays lie in one arena, which is freed whole.
 *
 * A builder remembers that memory ran out, and says so once, at the end: what is added in between is dropped, and
 * callers need no check at every step.
 *
 * Thread rules: as pod_resources.h.
 */
#ifndef PC_PLUGIN_KUBELET_CLAIMS_H
#define PC_PLUGIN_KUBELET_CLAIMS_H

#include "plugin/kubelet/pod_resources.h"

struct pc_claims_builder;

/* Errors: PC_ERR_HOST_MEMORY. */
enum pc_status pc_claims_builder_create(struct pc_claims_builder **out, struct pc_error *err);
/* Also after pc_claims_build. NULL is allowed. */
void pc_claims_builder_free(struct pc_claims_builder *builder);

/* A copy that lives as long as the table; NULL: no memory, and the build will say so. */
const char *pc_claims_text(struct pc_claims_builder *builder, const char *text);

/* Begins a claim; who's texts are copied, its arrays are not looked at. */
void pc_claims_begin(struct pc_claims_builder *builder, const struct pc_claim *who);
void pc_claims_add_id(struct pc_claims_builder *builder, const char *id);
void pc_claims_add_mount(struct pc_claims_builder *builder, const char *host_path);
/* Ends it: ids are sorted, each kept once. A claim without ids is left out. */
void pc_claims_end(struct pc_claims_builder *builder);
/* Drops what was begun. */
void pc_claims_cancel(struct pc_claims_builder *builder);

/* Hands the table to the caller, who ends it with pc_claims_clear. Errors: PC_ERR_HOST_MEMORY. */
enum pc_status pc_claims_build(struct pc_claims_builder *builder, struct pc_claims *out, struct pc_error *err);
/* Frees what is in it, not *claims itself. */
void pc_claims_clear(struct pc_claims *claims);

#endif
