// A tool that tells the host's time.
#include "project.h"
#include <stdlib.h>
#include <string.h>

static const char DESCRIPTOR[] =
    "{\"name\":\"{{name}}\",\"version\":\"0.1.0\",\"summary\":\"A tool that tells the time\",\"config-schema\":{"
    "\"type\":\"object\",\"properties\":{},\"additionalProperties\":false},\"mutates\":false,\"deterministic\":false}";

void exports_tidegate_plugin_meta_describe(exports_tidegate_plugin_meta_json_t *ret) {
  project_string_dup(ret, DESCRIPTOR);
}

// There is nothing to configure.
bool exports_tidegate_plugin_meta_configure(exports_tidegate_plugin_meta_json_t *config,
                                            exports_tidegate_plugin_meta_error_t *err) {
  project_string_free(config);
  return true;
}

bool exports_tidegate_plugin_tool_provider_list_tools(exports_tidegate_plugin_tool_provider_context_t *ctx,
                                                      exports_tidegate_plugin_tool_provider_list_tool_def_t *ret,
                                                      exports_tidegate_plugin_tool_provider_error_t *err) {
  ret->ptr = calloc(1, sizeof *ret->ptr);
  ret->len = 1;
  project_string_dup(&ret->ptr->name, "now");
  project_string_dup(&ret->ptr->description, "The time now, in milliseconds since 1970.");
  project_string_dup(&ret->ptr->input_schema, "{\"type\":\"object\"}");
  ret->ptr->hints.read_only = ret->ptr->hints.idempotent = true;
  exports_tidegate_plugin_tool_provider_context_free(ctx);
  return true;
}

// Decimal text; `printf` would make the component ten times as large.
static void decimal(uint64_t value, project_string_t *ret) {
  char digits[20];
  size_t at = sizeof digits;
  do {
    digits[--at] = '0' + value % 10;
    value /= 10;
  } while (value);
  project_string_dup_n(ret, digits + at, sizeof digits - at);
}

bool exports_tidegate_plugin_tool_provider_call_tool(exports_tidegate_plugin_tool_provider_context_t *ctx,
                                                     exports_tidegate_plugin_tool_provider_tool_call_t *call,
                                                     exports_tidegate_plugin_tool_provider_tool_outcome_t *ret,
                                                     exports_tidegate_plugin_tool_provider_error_t *err) {
  bool known = call->name.len == 3 && !memcmp(call->name.ptr, "now", 3);
  if (known) {
    memset(ret, 0, sizeof *ret);
    project_string_dup_n(&ret->call_id, (const char *)call->id.ptr, call->id.len);
    decimal(tidegate_plugin_clock_now_unix_ms(), &ret->content);
  } else {
    err->tag = TIDEGATE_PLUGIN_TYPES_ERROR_UNSUPPORTED;
    project_string_dup(&err->val.unsupported, "there is no such tool");
  }
  exports_tidegate_plugin_tool_provider_context_free(ctx);
  exports_tidegate_plugin_tool_provider_tool_call_free(call);
  return known;
}
