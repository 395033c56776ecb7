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

#define PC_LIST_NAME2(line) pc_next_##line
#define PC_LIST_NAME(line) PC_LIST_NAME2(line)

/* `it` may be removed from the list, and freed, inside the loop; no other element may. */
#define pc_list_each(it, list, member) pc_list_each_as(it, list, member, PC_LIST_NAME(__LINE__))
#define pc_list_each_as(it, list, member, ahead)                                                    \
    for (struct pc_list *ahead =                                                                    \
             ((it) = pc_container_of((list)->next, __typeof__(*(it)), member), (list)->next->next); \
         &(it)->member != (list); (it) = pc_container_of(ahead, __typeof__(*(it)), member), ahead = ahead->next)

#endif
