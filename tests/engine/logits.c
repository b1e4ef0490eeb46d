#include "logits.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

void logits_keep(void *arg, size_t position, const float *row) {
    struct logits *l = arg;
    memcpy(l->at[position], row, sizeof l->at[position]);
    l->n++;
}

double logits_distance(const struct logits *a, const struct logits *b, size_t *others) {
    double worst = 0;
    *others = 0;
    for (size_t i = 0; i < PROMPT; i++) {
        double d = 0, norm = 0, most = 0;
        size_t best_a = 0, best_b = 0;
        for (size_t j = 0; j < VOCAB - 1; j++) { /* the last row is no token */
            double e = (double)a->at[i][j] - (double)b->at[i][j];
            d += e * e;
            norm += (double)b->at[i][j] * (double)b->at[i][j];
            most = fabs(e) > most ? fabs(e) : most;
            best_a = a->at[i][j] > a->at[i][best_a] ? j : best_a;
            best_b = b->at[i][j] > b->at[i][best_b] ? j : best_b;
        }
        double relative = sqrt(d / norm);
        worst = relative > worst || isnan(relative) ? relative : worst;
        *others += best_a != best_b && b->at[i][best_b] - b->at[i][best_a] > 2 * most;
    }
    return worst;
}
