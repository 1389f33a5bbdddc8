// Sends long prompts to the model with the longest window.
#include "project.h"
#include <stdlib.h>
#include <string.h>

static unsigned long long_tokens = 1000;

static const char DESCRIPTOR[] =
    "{\"name\":\"{{name}}\",\"version\":\"0.1.0\",\"summary\":\"Routes by the length of the prompt\",\"config-schema\":{"
    "\"type\":\"object\",\"properties\":{\"long_tokens\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000000,\"default\":1000}},"
    "\"additionalProperties\":false},\"mutates\":false,\"deterministic\":true}";

void exports_tidegate_plugin_meta_describe(exports_tidegate_plugin_meta_json_t *ret) {
  project_string_dup(ret, DESCRIPTOR);
}

// The host has checked the config against the schema: `{}`, or `{"long_tokens":N}`.
bool exports_tidegate_plugin_meta_configure(exports_tidegate_plugin_meta_json_t *config,
                                            exports_tidegate_plugin_meta_error_t *err) {
  static const char KEY[] = "{\"long_tokens\":";
  size_t at = sizeof KEY - 1;
  if (config->len > at && !memcmp(config->ptr, KEY, at)) {
    for (long_tokens = 0; at < config->len && config->ptr[at] >= '0' && config->ptr[at] <= '9'; at++) {
      long_tokens = long_tokens * 10 + (config->ptr[at] - '0');
    }
  }
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
