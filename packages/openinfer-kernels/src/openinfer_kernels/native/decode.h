/* Attention of the sequences of a step that have one query. */
#pragma once

#include "step.h"

/* Writes the rows of a->out of these sequences, and no others.
 * Returns 0, or 1 if there is no memory for partial results. */
int attend_decodes(const Step *a);
