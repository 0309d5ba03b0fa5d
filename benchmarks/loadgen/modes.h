/* What can be measured. Each mode opens its connections, runs, and prints its report. */
#pragma once

void mode_fanout(void);
void mode_publish(void);
void mode_latency(void);
void mode_idle(void);
void mode_stalled(void);
