import { serve } from "@dragoman/adapter";

import { adapter } from "./adapter.js";

await serve(adapter);
