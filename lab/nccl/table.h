/* The text of nccl-tests v2.17.9, to the byte; only rank 0 has anything printed. */
#ifndef BUSBAR_TABLE_H
#define BUSBAR_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "options.h"
#include "world.h"

void table_banner(const struct world *world, const struct options *options, const char *program);
void table_reduced_to(size_t max_bytes);
void table_header(void);
void table_row_begins(size_t bytes, size_t count, const char *op, int root);
void table_half(double seconds, double algbw, double busbw, int64_t wrong, int checked);
void table_row_ends(void);
void table_footer(int out_of_bounds, double average, const char *program);

#endif
