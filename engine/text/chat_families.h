/* Chat templates by the name of the family that a model was tuned for, for models whose files bring none. */
#ifndef INFERD_TEXT_CHAT_FAMILIES_H
#define INFERD_TEXT_CHAT_FAMILIES_H

/* The source, NULL if there is no such family. */
const char *chat_family_template(const char *name);

#endif
