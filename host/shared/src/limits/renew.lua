-- The requests of one gateway run on. KEYS: a subject's leases. ARGV: microseconds of a lease; XX where only those that
-- are still known count, else CH; the requests' names.
local clock = redis.call('TIME')
local until_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2]) + tonumber(ARGV[1])
for i = 3, #ARGV do
  redis.call('ZADD', KEYS[1], ARGV[2], until_us, ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[1]) / 1000))
return 1
