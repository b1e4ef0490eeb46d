/* Every bound of the interpreter: a template comes with a model file and its input from a client, so each number that
 * they choose has its most. */
#ifndef INFERD_JINJA_LIMITS_H
#define INFERD_JINJA_LIMITS_H

enum {
    JJ_MAX_SOURCE = 1 << 20,      /* bytes of a template; the longest known is below 32 KiB */
    JJ_MAX_NESTING = 100,         /* brackets, blocks, unary operators inside one another */
    JJ_MAX_NODE_DEPTH = 400,      /* height of the tree; a chain of n binary operators has height n */
    JJ_MAX_EVAL_DEPTH = 1500,     /* evaluations inside one another, over calls of macros */
    JJ_MAX_VALUE_DEPTH = 200,     /* containers inside one another, when compared, printed or read from JSON */
    JJ_MAX_RANGE = 100000,        /* items of range(), as Jinja2's sandbox has it */
    JJ_MAX_BIG_LIMBS = 512,       /* 32-bit digits of an integer: about 4,900 decimal digits */
    JJ_MAX_ARGUMENTS = 255,       /* of one call, before * and ** */
    JJ_MAX_FORMAT_WIDTH = 100000, /* of a format specification */
    JJ_MAX_FLOAT_PRECISION = 1000,
    JJ_MAX_MACRO_PARAMETERS = 255,
};

/* A render's default budget: a base, and some for each byte of input. The base stops a hostile template well within 100
 * ms. */
#define JJ_STEPS_BASE UINT64_C(1000000)
#define JJ_STEPS_PER_BYTE UINT64_C(64) /* templates may look at every message for each message */
#define JJ_OUTPUT_BASE ((size_t)4 << 20)
#define JJ_OUTPUT_PER_BYTE ((size_t)8)
#define JJ_MEMORY_BASE ((size_t)32 << 20)
#define JJ_MEMORY_PER_BYTE ((size_t)64)
#define JJ_TIME_NS UINT64_C(5000000000)

#endif
