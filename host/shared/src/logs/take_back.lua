-- A log goes before its time: it ended before anything was written into it, and is as one that never was, or it gave way in
-- its gateway. KEYS: as above. ARGV: its gateway; milliseconds for which it can still be read.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[2]) end
return 1
