/*
 * The settings in force, with what is made of them. A reload puts another in the place of server->policy; requests and
 * the load hold the one they began with, since they read it on other threads. Loop thread; the content never changes.
 */
#ifndef INFERD_POLICY_H
#define INFERD_POLICY_H

#include "config.h"

struct policy {
    struct config config;    /* owned */
    struct model_names names; /* owned; the first is the model's own */
    size_t users;
};

/* Copies *c; held once, by the caller. */
int policy_new(const struct config *c, struct policy **out, struct error *err);
struct policy *policy_hold(struct policy *p);
void policy_release(struct policy *p); /* NULL is fine */

#endif
