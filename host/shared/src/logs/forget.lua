-- Nobody wants a log any more. KEYS: as above. ARGV: tenant; milliseconds for which its gateway shall not write it again.
local tenant = redis.call('HGET', KEYS[1], 'tenant')
if tenant and tenant ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[1], 'gone', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
