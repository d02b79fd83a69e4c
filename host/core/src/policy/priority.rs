//! Classes of requests.
use serde::{Deserialize, Serialize};

/// Priority class: the first class with work goes first. As a number 0, 1 and 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    High,
    #[default]
    Normal,
    Low,
}

impl Priority {
    /// The number that policies know the class by.
    pub fn number(self) -> u8 {
        match self {
            Priority::High => 0,
            Priority::Normal => 64,
            Priority::Low => 128,
        }
    }

    /// The most urgent class that is no more urgent than the number.
    pub fn of_number(number: u8) -> Self {
        [Priority::High, Priority::Normal].into_iter().find(|class| number <= class.number()).unwrap_or(Priority::Low)
    }

    /// The name in configuration and snapshots.
    pub fn as_str(self) -> &'static str {
        match self {
            Priority::High => "high",
            Priority::Normal => "normal",
            Priority::Low => "low",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_of_the_less_urgent_class_of_the_two_beside_it() {
        let expected = [(0, Priority::High), (1, Priority::Normal), (64, Priority::Normal), (65, Priority::Low)];
        for (number, class) in
            expected.into_iter().chain([(128, Priority::Low), (129, Priority::Low), (255, Priority::Low)])
        {
            assert_eq!(Priority::of_number(number), class, "{number}");
        }
        for class in [Priority::High, Priority::Normal, Priority::Low] {
            assert_eq!(Priority::of_number(class.number()), class);
        }
    }
}
