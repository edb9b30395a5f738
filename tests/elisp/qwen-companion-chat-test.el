;;; qwen-companion-chat-test.el --- Tests of the chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What a chat shows of what the Python process reports, and what it asks.
;; The real daemon has its part in tests/e2e.

;;; Code:

(require 'qwen-companion-chat-test-helper)

;;; Opening one

(ert-deftest qwen-companion-chat-test-off-says-what-to-do ()
  (qwen-companion-test-with-backend
    (let ((qwen-companion-daemon-enabled nil))
      (should (string-match-p
               "customize .qwen-companion-daemon-enabled"
               (cadr (should-error (call-interactively #'qwen-companion-chat)
                                   :type 'user-error)))))
    (let ((qwen-companion-daemon-enabled t))
      (should (string-match-p
               "turn on .qwen-companion-mode"
               (cadr (should-error (call-interactively #'qwen-companion-chat)
                                   :type 'user-error)))))
    (should-not (qwen-companion-chat-buffers))))

(ert-deftest qwen-companion-chat-test-opens-a-session-and-shows-what-is-said ()
  (qwen-companion-chat-test-with
    (should (eq (current-buffer) (qwen-companion-chat-buffer "s")))
    (qwen-companion-chat-test-turn
     (qwen-companion-chat-test-text 'user "What is it?" :by 'me)
     (qwen-companion-chat-test-text 'answer "A gree")
     (qwen-companion-chat-test-text 'answer "ting."))
    (should (equal "\n\fYou\nWhat is it?\n\nA greeting.\n"
                   (qwen-companion-chat-test-conversation)))))

(ert-deftest qwen-companion-chat-test-what-comes-before-the-reply-is-not-lost ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat t)
    (qwen-companion-chat-test-tell 'daemon-session :session "other" :state 'busy)
    (qwen-companion-chat-test-reply 'daemon-open :session "other")
    (should (eq 'busy (plist-get (buffer-local-value 'qwen-companion-chat--state
                                                     (qwen-companion-chat-buffer "other"))
                                 :state)))))

(provide 'qwen-companion-chat-test)
;;; qwen-companion-chat-test.el ends here
