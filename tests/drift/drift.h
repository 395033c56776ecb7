/* The assertions of the drift test. */
#ifndef DRIFT_H
#define DRIFT_H

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
#define WIDTH(theirs, ours) _Static_assert(sizeof(theirs) == sizeof(ours), #theirs " is not as wide as " #ours)
#define SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), "sizes of " #ours " and " #theirs)
#define FIELD(ours, field, theirs, other)                                          \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, other) &&             \
                       sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->other), \
                   #ours "." #field " is not where " #theirs "." #other " is")

#endif
