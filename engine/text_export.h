/* The files of a Hugging Face folder that say what a GGUF's metadata say of its text. */
#ifndef INFERD_TEXT_EXPORT_H
#define INFERD_TEXT_EXPORT_H

#include "model_file/model_file.h"

#include <inferd/text.h>

/* tokenizer.json, tokenizer_config.json (with the chat templates) and generation_config.json in `folder`; t is opened from f. */
int text_export(const struct model_file *f, const struct text *t, const char *folder, struct error *err);

#endif
