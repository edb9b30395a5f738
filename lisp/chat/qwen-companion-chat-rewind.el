;;; qwen-companion-chat-rewind.el --- Go back to before a prompt of a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The part of `qwen-companion-rewind' for a chat: the prompt at point, and
;; rewinding the conversation by the daemon, which takes no time.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-chat-blocks)
(require 'qwen-companion-chat-send)
(require 'qwen-companion-chat-state)
(require 'qwen-companion-completion)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-header)
(require 'qwen-companion-rewind)
(require 'qwen-companion-rewind-cli)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-chat-rewind-copy "chat:"
  "The beginning of the name of a copy of a conversation that a chat can open.")

(defconst qwen-companion-chat-rewind--near 60000
  "Most milliseconds between a prompt and the start of its turn in the journal.")

;;; Prompts

(defun qwen-companion-chat-rewind--prompts ()
  "Return each prompt of this chat in order, as (TURN TIME TEXT)."
  (save-excursion
    (save-restriction
      (widen)
      (goto-char (point-min))
      (cl-loop while (search-forward "\f" qwen-companion-chat-blocks-prompt-start t)
               for start = (1- (point))
               for turn = (get-text-property (point) 'qwen-companion-chat-turn)
               for block = (qwen-companion-chat-blocks-at start)
               when (and (stringp turn) block)
               collect (list turn (get-text-property (point) 'qwen-companion-chat-time)
                             (string-trim-right
                              (buffer-substring-no-properties
                               (line-beginning-position 2) (qwen-companion-chat-block-end block))
                              "\n+"))))))

(defun qwen-companion-chat-rewind--prompt-here ()
  "Return the prompt of the turn at point; in the input, let the user choose.
If there is none, show a message and return nil."
  (let ((prompts (qwen-companion-chat-rewind--prompts)))
    (cond
     ((null prompts) (ignore (message "This chat is empty")))
     ((< (point) qwen-companion-chat-blocks-prompt-start)
      (save-excursion
        (end-of-line)
        (or (assoc (and (search-backward "\f" nil t)
                        (get-text-property (1+ (point)) 'qwen-companion-chat-turn))
                   prompts)
            (car prompts))))
     (t
      (qwen-companion-completion-read
       "Rewind to before: "
       (cl-loop for prompt in (reverse prompts)
                for number from 1
                collect (cons (format "%d %s" number (qwen-companion-untrusted-line (nth 2 prompt)))
                              prompt))
       'qwen-companion-prompt)))))

(defun qwen-companion-chat-rewind-target ()
  "Return the prompt at point as a `qwen-companion-rewind-target'."
  (pcase (qwen-companion-chat-rewind--prompt-here)
    (`(,turn ,(and time (pred numberp)) ,text)
     (make-qwen-companion-rewind-target
      :conversation qwen-companion-chat-session-id
      :start time :prompt text :data (list turn text)))
    (`(,_ . ,_)
     (user-error "The daemon reports no time for this prompt, so its changes cannot be found"))))

;;; Rewinding

(defun qwen-companion-chat-rewind-find (target)
  "Return a way to rewind the conversation of TARGET if a chat has it.
For `qwen-companion-rewind-conversation-functions'."
  (when-let* ((chat (qwen-companion-chat-buffer
                     (qwen-companion-rewind-target-conversation target))))
    (with-current-buffer chat
      (let ((prompt (or (qwen-companion-rewind-target-data target)
                        (qwen-companion-chat-rewind--prompt-of target))))
        (cond
         ((qwen-companion-chat-trouble)
          (list (concat "the conversation stays: " (qwen-companion-chat-trouble))))
         ((not (eq 'idle (qwen-companion-daemon-session-state qwen-companion-chat-session)))
          (qwen-companion-header-error
           "A turn runs in %s; \\<qwen-companion-chat-mode-map>\\[qwen-companion-chat-cancel] there cancels it" (buffer-name)))
         ((null prompt)
          (list (format "the conversation stays: %s does not show this prompt" (buffer-name))))
         (t (cons "the conversation too"
                  (lambda () (qwen-companion-chat-rewind--begin chat target prompt)))))))))

(defun qwen-companion-chat-rewind--prompt-of (target)
  "Return the prompt of this chat that began the turn of TARGET, or nil.
It is (TURN TEXT)."
  (let* ((beginning (string-remove-suffix "…" (qwen-companion-rewind-target-prompt target)))
         (start (qwen-companion-rewind-target-start target))
         (found (cl-remove-if-not
                 (pcase-lambda (`(,_ ,time ,text))
                   (and time
                        (< (abs (- time start)) qwen-companion-chat-rewind--near)
                        (string-prefix-p beginning (string-join (split-string text) " "))))
                 (qwen-companion-chat-rewind--prompts))))
    (pcase (car (sort found (lambda (a b) (< (abs (- (nth 1 a) start)) (abs (- (nth 1 b) start))))))
      (`(,turn ,_ ,text) (list turn text)))))

(defun qwen-companion-chat-rewind--begin (chat target prompt)
  "Rewind the chat CHAT to before the PROMPT of TARGET, (TURN TEXT)."
  (with-current-buffer chat
    (qwen-companion-chat-call
     'daemon-rewind (list :session qwen-companion-chat-session-id :turn (car prompt))
     (lambda (reply)
       (if-let* ((error-text (qwen-companion-daemon-reply-error reply)))
           (qwen-companion-rewind-failed target error-text)
         (qwen-companion-rewind-note
          target (and (qwen-companion-daemon-reply-session reply)
                      (concat qwen-companion-chat-rewind-copy
                              (qwen-companion-daemon-reply-session reply))))
         (qwen-companion-chat-send-restore
          (qwen-companion-chat-send-as-sent (cadr prompt)))
         (message "Rewound to before that prompt; it is in the input of %s"
                  (buffer-name)))))))

(add-hook 'qwen-companion-rewind-conversation-functions #'qwen-companion-chat-rewind-find)

(provide 'qwen-companion-chat-rewind)
;;; qwen-companion-chat-rewind.el ends here
