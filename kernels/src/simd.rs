//! Loops over a row, compiled twice: with AVX2 and FMA where the processor has them, and plainly. The bits are the same: each
//! loop adds in an order that stands in its source, and a fused multiply-add is written where one is meant.

/// Defines `$name`, which runs `$plain` in the best way this processor has.
macro_rules! vectorised {
    ($(#[$doc:meta])* $vis:vis fn $name:ident = $plain:ident, $wide:ident $(<$T:ident: $bound:path>)?
     ($($arg:ident: $of:ty),* $(,)?) $(-> $out:ty)?) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn $wide$(<$T: $bound>)?($($arg: $of),*) $(-> $out)? {
            $plain($($arg),*)
        }

        $(#[$doc])*
        $vis fn $name$(<$T: $bound>)?($($arg: $of),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                #[expect(unsafe_code, reason = "a loop for processors with AVX2 and FMA")]
                // SAFETY: both features were found on this processor in the line above.
                return unsafe { $wide($($arg),*) };
            }
            $plain($($arg),*)
        }
    };
}
