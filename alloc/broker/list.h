/* A doubly linked list through members of its elements. An element that is in no list points at itself. */
#ifndef PC_BROKER_LIST_H
#define PC_BROKER_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/base/cleanup.h"

struct pc_list {
    struct pc_list *next, *prev;
};

static inline void pc_list_init(struct pc_list *list)
{
    list->next = list->prev = list;
}

static inline bool pc_list_empty(const struct pc_list *list)
{
    return list->next == list;
}

static inline void pc_list_append(struct pc_list *list, struct pc_list *link)
{
    link->prev = list->prev;
    link->next = list;
    list->prev->next = link;
    list->prev = link;
}

/* Takes an element out of its list; harmless on one that is in none. */
static inline void pc_list_remove(struct pc_list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    pc_list_init(link);
}

#define pc_list_first(list, type, member) pc_container_of((list)->next, type, member)

/* `it` may be removed from the list, and freed, inside the loop; no other element may. */
#define pc_list_each(it, list, member)                                                                   \
    for (struct pc_list *pc_next = ((it) = pc_container_of((list)->next, __typeof__(*(it)), member),     \
                                   (list)->next->next);                                                  \
         &(it)->member != (list);                                                                        \
         (it) = pc_container_of(pc_next, __typeof__(*(it)), member), pc_next = pc_next->next)

#endif
