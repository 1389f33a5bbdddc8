// Replaces one word in what the model says, also where the word comes in pieces.
#include "project.h"
#include <stdlib.h>
#include <string.h>

// What is dear to build is built in `configure`, which the host calls once per instance.
static char word[256] = "foo", replacement[256] = "bar";

static const char DESCRIPTOR[] =
    "{\"name\":\"{{name}}\",\"version\":\"0.1.0\",\"summary\":\"Replaces a word in answers\",\"config-schema\":{"
    "\"type\":\"object\",\"properties\":{\"word\":{\"type\":\"string\",\"default\":\"foo\"},"
    "\"replacement\":{\"type\":\"string\",\"default\":\"bar\"}},"
    "\"additionalProperties\":false},\"mutates\":true,\"deterministic\":true}";

void exports_tidegate_plugin_meta_describe(exports_tidegate_plugin_meta_json_t *ret) {
  project_string_dup(ret, DESCRIPTOR);
}

// Reads the string setting `key` of compact JSON into `value`, where it is there; false where it does not fit.
static bool setting(const project_string_t *json, const char *key, char *value, size_t size) {
  const char *at = (const char *)json->ptr, *end = at + json->len;
  size_t key_len = strlen(key);
  for (; at + key_len + 4 < end; at++) {
    if (at[0] == '"' && !memcmp(at + 1, key, key_len) && !memcmp(at + 1 + key_len, "\":\"", 3)) break;
  }
  if (at + key_len + 4 >= end) return true;
  size_t len = 0;
  for (at += key_len + 4; at < end && *at != '"'; at++) {
    if (*at == '\\' && (at[1] == '"' || at[1] == '\\')) at++;
    else if (*at == '\\') return false;
    if (len + 1 == size) return false;
    value[len++] = *at;
  }
  value[len] = 0;
  return true;
}

static bool refused(exports_tidegate_plugin_meta_error_t *err, const char *why) {
  err->tag = TIDEGATE_PLUGIN_TYPES_ERROR_INVALID_CONFIG;
  project_string_dup(&err->val.invalid_config, why);
  return false;
}

bool exports_tidegate_plugin_meta_configure(exports_tidegate_plugin_meta_json_t *config,
                                            exports_tidegate_plugin_meta_error_t *err) {
  bool has_word = setting(config, "word", word, sizeof word);
  bool has_replacement = setting(config, "replacement", replacement, sizeof replacement);
  project_string_free(config);
  if (!has_word) return refused(err, "`word` has a control character, or more than 255 bytes; name another");
  if (!word[0]) return refused(err, "`word` is empty; name one");
  // It is put into the JSON of a tool call's arguments as it stands.
  if (!has_replacement || strpbrk(replacement, "\"\\")) {
    return refused(err, "`replacement` has a quote, a backslash or a control character, or more than 255 bytes; name another");
  }
  return true;
}

// Where the word may begin at the end of the text, so that the rest of it may be in the next window.
static size_t safe_before(const char *text, size_t from, size_t len) {
  size_t word_len = strlen(word);
  for (size_t kept = word_len - 1 < len - from ? word_len - 1 : len - from; kept > 0; kept--) {
    if (!memcmp(text + len - kept, word, kept)) return len - kept;
  }
  return len;
}

bool exports_tidegate_plugin_stream_guard_inspect_window(exports_tidegate_plugin_stream_guard_context_t *ctx,
                                                         project_list_u8_t *carry,
                                                         exports_tidegate_plugin_stream_guard_window_t *window,
                                                         exports_tidegate_plugin_stream_guard_inspection_t *ret,
                                                         exports_tidegate_plugin_stream_guard_error_t *err) {
  // Arguments of a tool call are JSON, whose escapes are not read: in them `"\u0066oo"` is no `foo`. A word that JSON itself
  // writes, such as `true`, would leave none.
  const char *text = (const char *)window->text.ptr;
  size_t len = window->text.len, word_len = strlen(word), decided = window->settled, found = 0;
  // No more words fit than this; a window is short.
  size_t room = (len - decided) / word_len + 1;
  exports_tidegate_plugin_stream_guard_redaction_t *cuts = calloc(room, sizeof *cuts);
  for (size_t at = decided; at + word_len <= len; at++) {
    if (memcmp(text + at, word, word_len)) continue;
    cuts[found].span.start = at;
    cuts[found].span.end = decided = at + word_len;
    // An empty one stays as it is, all zeros: of a text without bytes nothing is freed behind the call.
    if (replacement[0]) project_string_dup(&cuts[found].text, replacement);
    found++;
    at = decided - 1;
  }
  memset(ret, 0, sizeof *ret);
  ret->action.tag = found ? EXPORTS_TIDEGATE_PLUGIN_STREAM_GUARD_WINDOW_ACTION_REDACT
                          : EXPORTS_TIDEGATE_PLUGIN_STREAM_GUARD_WINDOW_ACTION_PASS;
  if (found) {
    ret->action.val.redact.ptr = cuts;
    ret->action.val.redact.len = found;
  } else {
    free(cuts);
  }
  ret->safe_through = window->ending.is_some ? len : safe_before(text, decided, len);
  exports_tidegate_plugin_stream_guard_context_free(ctx);
  project_list_u8_free(carry);
  exports_tidegate_plugin_stream_guard_window_free(window);
  return true;
}
