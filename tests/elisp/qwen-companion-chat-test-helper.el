;;; qwen-companion-chat-test-helper.el --- What the tests of chats share  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)
(require 'qwen-companion-chat)

(defmacro qwen-companion-chat-test-with (&rest body)
  "Run BODY in the chat of session \"s\", idle, of a daemon that is connected."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-files nil
     (qwen-companion-test-with-backend
       (let ((qwen-companion-daemon-enabled t)
             (qwen-companion-daemon-url "http://127.0.0.1:4170")
             (qwen-companion-daemon-functions nil)
             (qwen-companion-daemon-disconnected-hook nil)
             (qwen-companion-backend-disconnected-hook nil)
             (qwen-companion-backend-methods nil)
             (qwen-companion-backend--state 'ready)
             (qwen-companion-chat-state--requests nil)
             (qwen-companion-chat-permissions--waiting-chats nil)
             ;; A key answers at once.
             (qwen-companion-chat-permissions--key-delay 0)
             (qwen-companion-chat-send--history (make-ring 100))
             (auth-sources nil)
             (inhibit-message t))
         (save-window-excursion
           (unwind-protect
               (progn
                 (call-interactively #'qwen-companion-chat)
                 (qwen-companion-chat-test-tell
                  'daemon-state :state 'connected :host "127.0.0.1:4170" :local t
                  :workspace "/project")
                 (qwen-companion-chat-test-reply 'daemon-open :session "s")
                 (qwen-companion-chat-test-tell
                  'daemon-session :session "s" :state 'idle :model "scripted" :mode "default")
                 ,@body)
             (qwen-companion-daemon--forget)
             (dolist (buffer (qwen-companion-chat-buffers))
               (with-current-buffer buffer
                 (setq kill-buffer-query-functions nil)
                 (kill-buffer)))))))))

(defun qwen-companion-chat-test-tell (method &rest payload)
  "Let the Python process call METHOD with PAYLOAD."
  (funcall (alist-get method qwen-companion-backend-methods) payload))

(defun qwen-companion-chat-test-workspace (directory)
  "Let the Python process report a daemon here with the workspace DIRECTORY."
  (qwen-companion-chat-test-tell
   'daemon-state :state 'connected :host "127.0.0.1:4170" :local t :workspace directory))

(defun qwen-companion-chat-test-reply (method &rest reply)
  "Let the Python process answer the last call of METHOD with REPLY."
  (apply #'qwen-companion-chat-test-tell 'daemon-reply
         :request (plist-get (car (last (qwen-companion-test-sent method))) :request)
         reply))

(defun qwen-companion-chat-test-turn (&rest changes)
  "Let the Python process report CHANGES of the session \"s\"."
  (qwen-companion-chat-test-tell 'daemon-turn :session "s" :changes changes))

(defun qwen-companion-chat-test-text (voice text &rest more)
  "Return that VOICE has said TEXT, in the turn \"t1\"; MORE comes first."
  (append more (list :kind 'text :turn "t1" :voice voice :text text)))

(defun qwen-companion-chat-test-say (text)
  "Let the model answer TEXT."
  (qwen-companion-chat-test-turn (qwen-companion-chat-test-text 'answer text)))

(defun qwen-companion-chat-test-session (&rest keys)
  "Let the Python process report KEYS of the session \"s\"."
  (apply #'qwen-companion-chat-test-tell 'daemon-session :session "s" keys))

(defun qwen-companion-chat-test-daemon (&rest keys)
  "Let the Python process report KEYS of the daemon."
  (apply #'qwen-companion-chat-test-tell 'daemon-state keys))

(defun qwen-companion-chat-test-conversation ()
  "Return the conversation without properties."
  (buffer-substring-no-properties (point-min) qwen-companion-chat-blocks-conversation-end))

(defun qwen-companion-chat-test-mode-line ()
  "Return the text for the session in the mode line of the chat."
  (mapconcat (lambda (part) (if (symbolp part) (symbol-value part) part))
             mode-line-process ""))

(defun qwen-companion-chat-test-prompt ()
  "Return the prompt as it is typed so far."
  (buffer-substring-no-properties qwen-companion-chat-blocks-prompt-start (point-max)))

(defun qwen-companion-chat-test-type (text)
  "Type TEXT as the prompt, in place of the present one."
  (goto-char (point-max))
  (delete-region qwen-companion-chat-blocks-prompt-start (point))
  (insert text))

(defun qwen-companion-chat-test-show ()
  "Have the conversation fontified, as showing it and a little time do."
  (while qwen-companion-chat-markdown--flood-start
    (accept-process-output nil 0.02))
  (qwen-companion-chat-markdown--fontify (point-min) qwen-companion-chat-blocks-conversation-end)
  (while qwen-companion-chat-markdown--pending
    (accept-process-output nil 0.02)))

(provide 'qwen-companion-chat-test-helper)
;;; qwen-companion-chat-test-helper.el ends here
