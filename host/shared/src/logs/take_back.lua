-- A log ended before anything was written into it, and is as one that never was. KEYS: as above. ARGV: its gateway.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
