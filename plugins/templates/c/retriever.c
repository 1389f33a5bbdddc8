// Finds passages that share a word with the question. Put your own search in its place.
#include "project.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char DESCRIPTOR[] =
    "{\"name\":\"{{name}}\",\"version\":\"0.1.0\",\"summary\":\"Finds passages by their words\",\"config-schema\":{"
    "\"type\":\"object\",\"properties\":{},\"additionalProperties\":false},\"mutates\":false,\"deterministic\":true}";

void exports_tidegate_plugin_meta_describe(exports_tidegate_plugin_meta_json_t *ret) {
  project_string_dup(ret, DESCRIPTOR);
}

// There is nothing to configure.
bool exports_tidegate_plugin_meta_configure(exports_tidegate_plugin_meta_json_t *config,
                                            exports_tidegate_plugin_meta_error_t *err) {
  project_string_free(config);
  return true;
}

static const struct {
  const char *id, *text;
} PASSAGES[] = {
    {"ferry", "The ferry leaves at nine."},
    {"lighthouse", "The lighthouse was built of granite."},
};
enum { COUNT = sizeof PASSAGES / sizeof *PASSAGES };

// The length of the word that begins at `at`: letters and digits of ASCII, and every byte of another script.
static size_t word_len(const char *text, size_t at, size_t len) {
  size_t end = at;
  while (end < len && (isalnum((unsigned char)text[end]) || (unsigned char)text[end] >= 0x80)) end++;
  return end - at;
}

static bool same(const char *a, const char *b, size_t len) {
  for (size_t i = 0; i < len; i++) {
    if (tolower((unsigned char)a[i]) != tolower((unsigned char)b[i])) return false;
  }
  return true;
}

static bool has(const char *text, size_t len, const char *word, size_t size) {
  for (size_t at = 0, found; at < len; at += found ? found : 1) {
    found = word_len(text, at, len);
    if (found == size && same(text + at, word, size)) return true;
  }
  return false;
}

// Words of four bytes and more that both have.
static uint32_t shared(const char *passage, const project_string_t *question) {
  uint32_t count = 0;
  size_t len = strlen(passage);
  for (size_t at = 0, size; at < len; at += size ? size : 1) {
    size = word_len(passage, at, len);
    count += size > 3 && has((const char *)question->ptr, question->len, passage + at, size);
  }
  return count;
}

bool exports_tidegate_plugin_retriever_retrieve(exports_tidegate_plugin_retriever_context_t *ctx,
                                                exports_tidegate_plugin_retriever_query_t *query,
                                                exports_tidegate_plugin_retriever_list_chunk_t *ret,
                                                exports_tidegate_plugin_retriever_error_t *err) {
  uint32_t scores[COUNT];
  for (size_t i = 0; i < COUNT; i++) scores[i] = shared(PASSAGES[i].text, &query->text);
  ret->ptr = calloc(COUNT, sizeof *ret->ptr);
  ret->len = 0;
  // The best of what is left, as often as there is one.
  while (ret->len < query->top_k) {
    size_t best = 0;
    for (size_t i = 1; i < COUNT; i++) best = scores[i] > scores[best] ? i : best;
    if (!scores[best]) break;
    exports_tidegate_plugin_retriever_chunk_t *chunk = &ret->ptr[ret->len++];
    project_string_dup(&chunk->id, PASSAGES[best].id);
    project_string_dup(&chunk->text, PASSAGES[best].text);
    chunk->score.is_some = true;
    chunk->score.val = scores[best];
    scores[best] = 0;
  }
  // Of a list without elements nothing is freed behind the call.
  if (!ret->len) free(ret->ptr);
  exports_tidegate_plugin_retriever_context_free(ctx);
  exports_tidegate_plugin_retriever_query_free(query);
  return true;
}
