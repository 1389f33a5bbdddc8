// Sends long prompts to the model with the longest window.
#include "project.h"
#include <stdlib.h>
#include <string.h>

static unsigned long long_tokens = 1000;

static const char DESCRIPTOR[] =
    "{\"name\":\"length-router\",\"version\":\"0.1.0\",\"summary\":\"Routes by the length of the prompt\",\"config-schema\":{"
    "\"type\":\"object\",\"properties\":{\"long_tokens\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000000,\"default\":1000}},"
    "\"additionalProperties\":false},\"mutates\":false,\"deterministic\":true}";

void exports_tidegate_plugin_meta_describe(exports_tidegate_plugin_meta_json_t *ret) {
  project_string_dup(ret, DESCRIPTOR);
}

// Reads the whole number `key` of compact JSON into `value`, where it is there.
static void setting(const project_string_t *json, const char *key, unsigned long *value) {
  const char *at = (const char *)json->ptr, *end = at + json->len;
  size_t key_len = strlen(key);
  for (; at + key_len + 3 < end; at++) {
    if (at[0] == '"' && !memcmp(at + 1, key, key_len) && !memcmp(at + 1 + key_len, "\":", 2)) break;
  }
  if (at + key_len + 3 >= end) return;
  *value = 0;
  for (at += key_len + 3; at < end && *at >= '0' && *at <= '9'; at++) *value = *value * 10 + (*at - '0');
}

// The host has checked the config against the schema, by which the number fits.
bool exports_tidegate_plugin_meta_configure(exports_tidegate_plugin_meta_json_t *config,
                                            exports_tidegate_plugin_meta_error_t *err) {
  setting(config, "long_tokens", &long_tokens);
  project_string_free(config);
  return true;
}

bool exports_tidegate_plugin_router_route(exports_tidegate_plugin_router_context_t *ctx,
                                          exports_tidegate_plugin_router_request_t *request,
                                          exports_tidegate_plugin_router_list_candidate_t *candidates,
                                          exports_tidegate_plugin_router_decision_t *ret,
                                          exports_tidegate_plugin_router_error_t *err) {
  bool is_long = request->prompt_tokens > long_tokens;
  size_t count = candidates->len;
  exports_tidegate_plugin_router_candidate_t *sorted = candidates->ptr;
  // By insertion: there are few, and equal ones keep the order of the config.
  for (size_t i = 1; is_long && i < count; i++) {
    exports_tidegate_plugin_router_candidate_t moved = sorted[i];
    size_t to = i;
    for (; to > 0 && sorted[to - 1].context_tokens < moved.context_tokens; to--) sorted[to] = sorted[to - 1];
    sorted[to] = moved;
  }
  memset(ret, 0, sizeof *ret);
  ret->order.len = count;
  ret->order.ptr = calloc(count, sizeof *ret->order.ptr);
  for (size_t i = 0; i < count; i++) {
    project_string_dup_n(&ret->order.ptr[i], (const char *)sorted[i].id.ptr, sorted[i].id.len);
  }
  project_string_dup(&ret->reason, is_long ? "a long prompt" : "a short prompt");
  exports_tidegate_plugin_router_context_free(ctx);
  exports_tidegate_plugin_router_request_free(request);
  exports_tidegate_plugin_router_list_candidate_free(candidates);
  return true;
}
