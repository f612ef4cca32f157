SELECT min(moments.available_at) AS available_at
FROM (/* due.moments-1: param_1, param_2 */) AS moments
