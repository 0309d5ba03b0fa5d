// The sections of the page, in the order of the bar: each module adds its own. A new one is a module in views/ and a line here.

import "./views/topics.js";
import "./views/kernels.js";
import "./views/executions.js";
import "./views/pipeline.js";
import "./views/system.js";
