// Counts requests by how they ended.
#include "project.h"
#include <string.h>

static const char DESCRIPTOR[] =
    "{\"name\":\"{{name}}\",\"version\":\"0.1.0\",\"summary\":\"Counts requests\",\"config-schema\":{"
    "\"type\":\"object\",\"properties\":{},\"additionalProperties\":false},"
    "\"mutates\":false,\"deterministic\":false,\"metrics\":["
    "{\"name\":\"answered\",\"summary\":\"Requests that were answered\"},"
    "{\"name\":\"others\",\"summary\":\"Requests that ended in another way\"}]}";

void exports_tidegate_plugin_meta_describe(exports_tidegate_plugin_meta_json_t *ret) {
  project_string_dup(ret, DESCRIPTOR);
}

// There is nothing to configure.
bool exports_tidegate_plugin_meta_configure(exports_tidegate_plugin_meta_json_t *config,
                                            exports_tidegate_plugin_meta_error_t *err) {
  project_string_free(config);
  return true;
}

bool exports_tidegate_plugin_observer_on_complete(exports_tidegate_plugin_observer_context_t *ctx,
                                                  exports_tidegate_plugin_observer_summary_t *summary,
                                                  exports_tidegate_plugin_observer_error_t *err) {
  static const char ANSWERED[] = "answered";
  size_t len = sizeof ANSWERED - 1;
  bool answered = summary->outcome.len == len && !memcmp(summary->outcome.ptr, ANSWERED, len);
  project_string_t name;
  project_string_set(&name, answered ? ANSWERED : "others");
  tidegate_plugin_metrics_count(&name, 1);
  exports_tidegate_plugin_observer_context_free(ctx);
  exports_tidegate_plugin_observer_summary_free(summary);
  return true;
}
