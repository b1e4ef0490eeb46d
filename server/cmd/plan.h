/* What `inferd plan` prints. All write to *out, a failed buffer says that memory ran out. */
#ifndef INFERD_CMD_PLAN_H
#define INFERD_CMD_PLAN_H

#include <inferd/buf.h>
#include <inferd/plan.h>

void plan_print(const struct plan_question *q, const struct plan_answer *a, struct buf *out);
void plan_print_json(const struct plan_question *q, const struct plan_answer *a, struct buf *out);
void plan_print_options(const struct plan_wish *w, const struct plan_option *found, size_t n, bool json, struct buf *out);
void plan_print_training(const struct plan_question *q, const struct plan_train_question *t, const struct plan_train_answer *a,
                         bool json, struct buf *out);
/* An SVG: a bar of each rank's memory against the card, and a table of contexts and batches by whether they fit. Asks the
 * question again for each of them. */
int plan_chart(const struct plan_question *q, const struct plan_answer *a, struct buf *out, struct error *err);

#endif
