// Refuses answers that hold a word.
#include "project.h"
#include <string.h>

// What is dear to build is built in `configure`, which the host calls once per instance.
static char word[256] = "forbidden";

static const char DESCRIPTOR[] =
    "{\"name\":\"{{name}}\",\"version\":\"0.1.0\",\"summary\":\"Refuses answers that hold a word\",\"config-schema\":{"
    "\"type\":\"object\",\"properties\":{\"word\":{\"type\":\"string\",\"minLength\":1,\"default\":\"forbidden\"}},"
    "\"additionalProperties\":false},\"mutates\":false,\"deterministic\":true}";

void exports_tidegate_plugin_meta_describe(exports_tidegate_plugin_meta_json_t *ret) {
  project_string_dup(ret, DESCRIPTOR);
}

// Reads the word of `{}` or `{"word":"..."}`; false where it does not fit.
static bool read_word(const project_string_t *config) {
  static const char KEY[] = "{\"word\":\"";
  size_t at = sizeof KEY - 1, len = 0;
  if (config->len <= at || memcmp(config->ptr, KEY, at)) return true;
  for (; at < config->len && config->ptr[at] != '"' && config->ptr[at] != '\\' && len + 1 < sizeof word; at++) {
    word[len++] = config->ptr[at];
  }
  word[len] = 0;
  return at < config->len && config->ptr[at] == '"';
}

// The host has checked the config against the schema.
bool exports_tidegate_plugin_meta_configure(exports_tidegate_plugin_meta_json_t *config,
                                            exports_tidegate_plugin_meta_error_t *err) {
  bool good = read_word(config);
  project_string_free(config);
  if (good) return true;
  err->tag = TIDEGATE_PLUGIN_TYPES_ERROR_INVALID_CONFIG;
  project_string_dup(&err->val.invalid_config,
                     "`word` has a quote, a backslash or a control character, or more than 255 bytes; name another");
  return false;
}

// The text of a part that has one: what is said, reasoned or refused, what a tool answered, and what it is called with: JSON,
// whose escapes are not read.
static const project_string_t *text_of(const tidegate_plugin_types_part_t *part) {
  switch (part->tag) {
    case TIDEGATE_PLUGIN_TYPES_PART_TEXT: return &part->val.text;
    case TIDEGATE_PLUGIN_TYPES_PART_REASONING: return &part->val.reasoning;
    case TIDEGATE_PLUGIN_TYPES_PART_REFUSAL: return &part->val.refusal;
    case TIDEGATE_PLUGIN_TYPES_PART_TOOL_OUTCOME: return &part->val.tool_outcome.content;
    case TIDEGATE_PLUGIN_TYPES_PART_TOOL_CALL: return &part->val.tool_call.arguments;
    default: return NULL;
  }
}

static bool holds_word(const tidegate_plugin_types_message_t *message) {
  size_t word_len = strlen(word);
  for (size_t i = 0; i < message->parts.len; i++) {
    const project_string_t *text = text_of(&message->parts.ptr[i]);
    for (size_t at = 0; text && at + word_len <= text->len; at++) {
      if (!memcmp(text->ptr + at, word, word_len)) return true;
    }
  }
  return false;
}

bool exports_tidegate_plugin_output_guard_inspect_output(exports_tidegate_plugin_output_guard_context_t *ctx,
                                                         exports_tidegate_plugin_output_guard_output_t *output,
                                                         exports_tidegate_plugin_output_guard_verdict_t *ret,
                                                         exports_tidegate_plugin_output_guard_error_t *err) {
  bool found = false;
  for (size_t i = 0; i < output->choices.len; i++) found |= holds_word(&output->choices.ptr[i]);
  // All zeros: allowed, without findings.
  memset(ret, 0, sizeof *ret);
  if (found) {
    ret->action.tag = TIDEGATE_PLUGIN_TYPES_ACTION_REFUSE;
    project_string_dup(&ret->action.val.refuse.code, "word");
    project_string_dup(&ret->action.val.refuse.public_message, "This answer holds a word that is not allowed here.");
  }
  exports_tidegate_plugin_output_guard_context_free(ctx);
  exports_tidegate_plugin_output_guard_output_free(output);
  return true;
}
