/* The writer's side of a grant's sealed page (proto/page.h). Thread rules: the loop thread. */
#ifndef PC_BROKER_PAGE_H
#define PC_BROKER_PAGE_H

#include "alloc/base/error.h"
#include "proto/page.h"

struct pc_page_file;

/* Makes and seals a page for gpus GPUs. Errors: PC_ERR_IO. */
enum pc_status pc_page_create(unsigned gpus, uint64_t epoch, struct pc_page_file **out, struct pc_error *err);
void pc_page_free(struct pc_page_file *page); /* NULL is allowed; readers keep their mapping */

/* A descriptor that can be mapped for reading only; stays the page's. */
int pc_page_fd(const struct pc_page_file *page);

void pc_page_publish(struct pc_page_file *page, unsigned gpu, const struct pc_page_figures *figures);
void pc_page_set_wanted(struct pc_page_file *page, unsigned gpu, uint32_t mib);
void pc_page_set_alive(struct pc_page_file *page, bool alive);

#endif
