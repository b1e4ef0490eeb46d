/* config.json of a checkpoint that is written: the source's own with a quantization_config, or one made from a GGUF's numbers. */
#ifndef INFERD_QUANTIZE_CONFIG_H
#define INFERD_QUANTIZE_CONFIG_H

#include "model/config.h"

#include <inferd/text.h>

/*
 * The numbers as Hugging Face's form has them: rotation over halves, and no table of rope factors (rope_freqs.weight), which
 * must be those of Llama 3.1's formula. ERROR_UNSUPPORTED for what a config.json could not say.
 */
int quantize_target_config(const struct model_config *source, const struct model_file *file, struct model_config *out,
                           struct error *err);

/* `stored`: the type of what is not quantised. text gives the ids of beginning and end; NULL for a source with a config.json. */
int quantize_config_json(const struct model_config *target, const struct model_file *file, enum dtype stored,
                         const struct text *text, struct buf *out, struct error *err);

#endif
