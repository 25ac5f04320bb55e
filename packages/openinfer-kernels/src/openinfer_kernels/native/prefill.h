/* Attention of the sequences of a step that have several queries. */
#pragma once

#include "step.h"

/* Writes the rows of a->out of these sequences, and no others.
 * Returns 0, or 1 if there is no memory for a thread's operands. */
int attend_prefills(const Step *a);
