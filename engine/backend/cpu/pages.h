/* Memory in pages of its own: zeroed, taken from the system when first touched. */
#ifndef CPU_PAGES_H
#define CPU_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HUGE_PAGE = 2 << 20,
    HUGE_FROM = 32 << 20, /* smaller pieces would take much more memory than what was touched of them */
};

/* `nodes`: spread over these memory nodes, 0: as it falls. Pieces from HUGE_FROM on begin at a multiple of HUGE_PAGE
 * and ask for huge pages if `huge`. Neither wish is an error where the system does not grant it. NULL without memory.
 */
void *pages_map(size_t bytes, uint64_t nodes, bool huge);
void pages_unmap(void *p, size_t bytes); /* NULL is fine; the same bytes */

#endif
