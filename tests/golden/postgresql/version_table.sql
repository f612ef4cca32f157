SELECT 1 AS found
WHERE to_regclass(%(to_regclass_1)s::VARCHAR) IS NOT NULL
