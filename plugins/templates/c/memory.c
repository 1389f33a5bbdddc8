// Remembers what its callers say their name is.
#include "project.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char DESCRIPTOR[] =
    "{\"name\":\"{{name}}\",\"version\":\"0.1.0\",\"summary\":\"Remembers what callers say their name is\",\"config-schema\":{"
    "\"type\":\"object\",\"properties\":{},\"additionalProperties\":false},"
    "\"mutates\":false,\"deterministic\":false,"
    "\"capabilities\":[{\"name\":\"kv\",\"reason\":\"The names are kept there\"}]}";

void exports_tidegate_plugin_meta_describe(exports_tidegate_plugin_meta_json_t *ret) {
  project_string_dup(ret, DESCRIPTOR);
}

// There is nothing to configure.
bool exports_tidegate_plugin_meta_configure(exports_tidegate_plugin_meta_json_t *config,
                                            exports_tidegate_plugin_meta_error_t *err) {
  project_string_free(config);
  return true;
}

static const char BEFORE[] = "The user's name is ", MARK[] = "my name is ";

// Storage is the tenant's, or its project's; its callers are kept apart here.
static project_string_t key(const tidegate_plugin_types_context_t *ctx) {
  static const char PREFIX[] = "name/";
  project_string_t key = {.len = sizeof PREFIX - 1 + ctx->caller.len};
  key.ptr = malloc(key.len);
  memcpy(key.ptr, PREFIX, sizeof PREFIX - 1);
  memcpy(key.ptr + sizeof PREFIX - 1, ctx->caller.ptr, ctx->caller.len);
  return key;
}

// A list of one item that says the name.
static void item(exports_tidegate_plugin_memory_list_item_t *ret, const uint8_t *name, size_t len) {
  size_t before = sizeof BEFORE - 1;
  ret->ptr = calloc(1, sizeof *ret->ptr);
  ret->len = 1;
  project_string_dup(&ret->ptr->id, "name");
  ret->ptr->text.len = before + len + 1;
  ret->ptr->text.ptr = malloc(ret->ptr->text.len);
  memcpy(ret->ptr->text.ptr, BEFORE, before);
  memcpy(ret->ptr->text.ptr + before, name, len);
  ret->ptr->text.ptr[before + len] = '.';
}

bool exports_tidegate_plugin_memory_recall(exports_tidegate_plugin_memory_context_t *ctx,
                                           exports_tidegate_plugin_memory_question_t *question,
                                           exports_tidegate_plugin_memory_list_item_t *ret,
                                           exports_tidegate_plugin_memory_error_t *err) {
  project_string_t at = key(ctx);
  project_option_list_u8_t known;
  memset(ret, 0, sizeof *ret);
  bool good = tidegate_plugin_kv_get(&at, &known, err);
  if (good && known.is_some) {
    item(ret, known.val.ptr, known.val.len);
    project_option_list_u8_free(&known);
  }
  project_string_free(&at);
  exports_tidegate_plugin_memory_context_free(ctx);
  exports_tidegate_plugin_memory_question_free(question);
  return good;
}

// The word behind "my name is", as a part of the text; of length 0 where there is none.
static project_string_t name_in(const project_string_t *text) {
  size_t mark = sizeof MARK - 1;
  for (size_t at = 0; at + mark < text->len; at++) {
    size_t same = 0, end = at + mark;
    while (same < mark && tolower(text->ptr[at + same]) == MARK[same]) same++;
    if (same < mark) continue;
    while (end < text->len && (isalnum(text->ptr[end]) || text->ptr[end] >= 0x80)) end++;
    return (project_string_t){.ptr = text->ptr + at + mark, .len = end - at - mark};
  }
  return (project_string_t){0};
}

bool exports_tidegate_plugin_memory_remember(exports_tidegate_plugin_memory_context_t *ctx,
                                             exports_tidegate_plugin_memory_exchange_t *exchange,
                                             exports_tidegate_plugin_memory_list_item_t *ret,
                                             exports_tidegate_plugin_memory_error_t *err) {
  project_string_t name = {0}, at = key(ctx);
  for (size_t i = 0; i < exchange->messages.len; i++) {
    const tidegate_plugin_types_message_t *message = &exchange->messages.ptr[i];
    if (message->role.tag != TIDEGATE_PLUGIN_TYPES_ROLE_USER) continue;
    for (size_t part = 0; !name.len && part < message->parts.len; part++) {
      if (message->parts.ptr[part].tag != TIDEGATE_PLUGIN_TYPES_PART_TEXT) continue;
      name = name_in(&message->parts.ptr[part].val.text);
    }
  }
  memset(ret, 0, sizeof *ret);
  project_list_u8_t value = {.ptr = name.ptr, .len = name.len};
  bool good = !name.len || tidegate_plugin_kv_set(&at, &value, NULL, err);
  if (good && name.len) item(ret, name.ptr, name.len);
  project_string_free(&at);
  exports_tidegate_plugin_memory_context_free(ctx);
  exports_tidegate_plugin_memory_exchange_free(exchange);
  return good;
}

bool exports_tidegate_plugin_memory_forget(exports_tidegate_plugin_memory_context_t *ctx, project_list_string_t *ids,
                                           uint32_t *ret, exports_tidegate_plugin_memory_error_t *err) {
  project_string_t at = key(ctx);
  project_option_list_u8_t known = {0};
  bool asked = false, good = true;
  for (size_t i = 0; i < ids->len; i++) asked |= ids->ptr[i].len == 4 && !memcmp(ids->ptr[i].ptr, "name", 4);
  if (asked) good = tidegate_plugin_kv_get(&at, &known, err);
  if (good && known.is_some) good = tidegate_plugin_kv_delete(&at, err);
  *ret = good && known.is_some;
  project_option_list_u8_free(&known);
  project_string_free(&at);
  exports_tidegate_plugin_memory_context_free(ctx);
  project_list_string_free(ids);
  return good;
}
