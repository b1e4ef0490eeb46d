/* A stack of its own for the handlers of fatal signals, so that a thread whose stack is used up can still be reported. */
#ifndef INFERD_SIGNAL_STACK_H
#define INFERD_SIGNAL_STACK_H

/* For the calling thread, as long as it lives; again is harmless. Builds with a sanitizer have the sanitizer's. */
void signal_stack_use(void);

#endif
