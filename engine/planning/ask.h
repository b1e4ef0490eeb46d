/* Between the files of planning: a question with its defaults put in, and the model's shape. */
#ifndef INFERD_PLANNING_ASK_H
#define INFERD_PLANNING_ASK_H

#include "planning/shape.h"

#include <inferd/plan.h>

struct ask {
    struct plan_question q; /* complete */
    struct shape shape;     /* owned by whoever called ask_open */
    enum weights_format format;
    enum dtype kv;
    size_t engine_sequences; /* that the daemon would plan for without a number */
};

int ask_open(struct ask *k, const struct plan_question *q, struct error *err);
/* Another question about the same model. */
int ask_again(struct ask *k, const struct plan_question *q, struct plan_answer *out, struct error *err);
void ask_close(struct ask *k);

bool ask_is_cpu(const struct plan_gpu *g);
/* Can so many ranks share the heads? */
bool ask_valid_tp(const struct shape *s, size_t tp);

/* The speeds of *a, whose other fields are set. */
int estimate(const struct ask *k, struct plan_answer *a, struct error *err);

#endif
