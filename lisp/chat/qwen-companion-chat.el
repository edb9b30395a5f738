;;; qwen-companion-chat.el --- Chat with qwen serve  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `qwen-companion-chat' shows a session of `qwen serve'.  Its buffer has the
;; conversation and, below it, a prompt that is edited like any text.  A chat
;; shows the reports of the Python process on its session; `g' reads all of it
;; again.
;;
;; A chat outlives its session, the daemon and the Python process: the
;; conversation stays readable, and a prompt that was not accepted is restored.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-attention)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-chat-blocks)
(require 'qwen-companion-chat-choices)
(require 'qwen-companion-chat-export)
(require 'qwen-companion-chat-markdown)
(require 'qwen-companion-chat-permissions)
(require 'qwen-companion-chat-review)
(require 'qwen-companion-chat-rewind)
(require 'qwen-companion-chat-send)
(require 'qwen-companion-chat-state)
(require 'qwen-companion-chat-tools)
(require 'qwen-companion-daemon)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-drafts)
(require 'qwen-companion-header)
(require 'qwen-companion-layer)
(require 'qwen-companion-rewind)
(require 'qwen-companion-spool)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defface qwen-companion-chat-heading
  '((((class color) (min-colors 88) (background light))
     :inherit bold :background "grey82" :extend t)
    (((class color) (min-colors 88) (background dark))
     :inherit bold :background "grey30" :extend t)
    (t :inherit bold :underline t :extend t))
  "Face of the heading above a message of a user."
  :group 'qwen-companion)

;;; State

(defvar-local qwen-companion-chat--places nil
  "Positions of the windows before the conversation was read again.
A list of (WINDOW POINT START), see `qwen-companion-chat--place'.")

;;; The name of the buffer

(defvar-local qwen-companion-chat--names nil
  "Cons of the intended and the actual name of the buffer, or nil.
They differ where another buffer had the name.")

(defconst qwen-companion-chat--title-width 32
  "Most columns of a session's title in a buffer's name.")

(defun qwen-companion-chat--name ()
  "Return the name that the current buffer should have."
  (let ((title (qwen-companion-daemon-session-title qwen-companion-chat-session))
        ;; No file name function: the name may look like a remote one.
        (project (car (last (split-string (or (qwen-companion-daemon-workspace) "")
                                          "[/\\]" t)))))
    (if (string-blank-p (or title ""))
        "*qwen chat*"
      (format "*qwen chat: %s%s*"
              (qwen-companion-chat--short title qwen-companion-chat--title-width)
              (if project
                  (format " (%s)" (qwen-companion-chat--short project 20))
                "")))))

(defun qwen-companion-chat--short (text width)
  "Return the untrusted TEXT on one line of at most WIDTH columns."
  (truncate-string-to-width (qwen-companion-untrusted-text text) width nil nil "…"))

(defun qwen-companion-chat--rename ()
  "Name the current buffer after its session, unless the user has named it."
  (let ((name (qwen-companion-chat--name)))
    (when (and (equal (buffer-name) (cdr qwen-companion-chat--names))
               (not (equal name (car qwen-companion-chat--names))))
      (setq qwen-companion-chat--names (cons name (rename-buffer name t))))))

(defun qwen-companion-chat--identification ()
  "Return the name of the current buffer for the mode line.
It leaves room for the rest of the mode line in 80 columns."
  (propertized-buffer-identification
   (string-replace "%" "%%" (truncate-string-to-width (buffer-name) 24 nil nil t))))

;;; Header and mode line

(defvar-local qwen-companion-chat--usage nil
  "Tokens that the model's last answer took, a `usage' change, or nil.")

(defvar-local qwen-companion-chat--batches-left 0
  "Number of reports to come until the conversation is complete again.")

(defvar-local qwen-companion-chat--began nil
  "Time at which the running turn began, in seconds since the epoch, or nil.")

(defvar-local qwen-companion-chat--failure nil
  "Reason why the last turn failed, a string, or nil.")

(defvar qwen-companion-chat--clock nil
  "Timer that shows how long chats have been working, or nil.")

(defvar-local qwen-companion-chat--header nil
  "The header line.")

(defvar-local qwen-companion-chat--mode-line nil
  "Model, approval mode and state, for the mode line.")
(put 'qwen-companion-chat--header 'risky-local-variable t)
(put 'qwen-companion-chat--mode-line 'risky-local-variable t)

(defun qwen-companion-chat--usage-text ()
  "Return a list with a text about the context, or nil."
  (let ((used (qwen-companion-daemon-session-used qwen-companion-chat-session))
        (size (qwen-companion-daemon-session-size qwen-companion-chat-session)))
    (and used
         (list (if size
                   (format "context %s of %s (%d%%)"
                           (qwen-companion-layer-number used)
                           (qwen-companion-layer-number size)
                           (/ (* 100 used) (max 1 size)))
                 (format "context %s" (qwen-companion-layer-number used)))))))

(defun qwen-companion-chat--tokens-text ()
  "Return a text about the tokens of the last answer, or nil."
  (let ((input (qwen-companion-daemon-usage-input qwen-companion-chat--usage))
        (output (qwen-companion-daemon-usage-output qwen-companion-chat--usage)))
    (and input output
         (format "last answer %s in, %s out"
                 (qwen-companion-layer-number input)
                 (qwen-companion-layer-number output)))))

(defun qwen-companion-chat--queued-text (count)
  "Return a text about the daemon's queue of COUNT."
  (propertize (format "%d queued" count)
              'help-echo
              (mapconcat (lambda (queued)
                           (qwen-companion-untrusted-line (qwen-companion-daemon-queued-text queued)))
                         (qwen-companion-daemon-session-queue qwen-companion-chat-session)
                         "\n")))

(defun qwen-companion-chat--busy-p (state)
  "Return non-nil when a session in STATE is working."
  (memq state '(busy waiting cancelling)))

(defun qwen-companion-chat--state-text (state)
  "Return STATE of the session in words, and the duration of a running turn."
  (let ((seconds (and qwen-companion-chat--began
                      (max 0 (floor (- (float-time) qwen-companion-chat--began))))))
    (concat (if state (symbol-name state) "opening")
            (and seconds (format " %d:%02d" (/ seconds 60) (% seconds 60))))))

(defun qwen-companion-chat--update ()
  "Update the header line and the mode line."
  (let* ((state (qwen-companion-daemon-session-state qwen-companion-chat-session))
         (trouble (qwen-companion-chat-trouble))
         (clients (qwen-companion-daemon-session-clients qwen-companion-chat-session))
         (queued (length (qwen-companion-daemon-session-queue qwen-companion-chat-session)))
         (place (and (not (eq 'off (qwen-companion-daemon-state)))
                     (propertize (qwen-companion-daemon-location)
                                 'help-echo (qwen-companion-daemon-description)))))
    (setq qwen-companion-chat--header
          ;; The most important comes first, since windows may be narrow.
          (mapconcat
           (apply-partially #'concat " ")
           (delq nil
                 (append
                  ;; With any trouble, name the machine and the workspace too.
                  (list (qwen-companion-chat-send-kept-text)
                        (and trouble place)
                        (if trouble
                            (propertize trouble 'face 'warning)
                          (qwen-companion-chat--state-text state))
                        (and (memq state '(nil loading)) (qwen-companion-daemon-progress))
                        (and (> queued 0) (qwen-companion-chat--queued-text queued))
                        (and (> qwen-companion-chat--batches-left 0) "reading the conversation"))
                  (qwen-companion-chat--usage-text)
                  (list (and clients (> clients 1) (format "%d clients" clients))
                        (and (not trouble) place)
                        (and place (qwen-companion-daemon-workspace-name))
                        (qwen-companion-chat--tokens-text))))
           " ")
          qwen-companion-chat--mode-line
          (concat " "
                  (mapconcat #'identity
                             (delq nil (list (propertize (if state (symbol-name state) "opening")
                                                         'face (and (eq state 'waiting) 'warning))
                                             (qwen-companion-chat-choices-lighter 'model)
                                             (qwen-companion-chat-choices-lighter 'mode)))
                             " ")))
    (force-mode-line-update)))

;;; Reports

(defconst qwen-companion-chat--handlers
  '((daemon-session . qwen-companion-chat--on-session)
    (daemon-choices . qwen-companion-chat-choices-on-choices)
    (daemon-commands . qwen-companion-chat-send-on-commands)
    (daemon-reset . qwen-companion-chat--on-reset)
    (daemon-turn . qwen-companion-chat--on-turn)
    (daemon-permission . qwen-companion-chat-permissions-on-permission)
    (daemon-text . qwen-companion-chat-tools-on-text)
    (daemon-usage . qwen-companion-chat-tools-on-usage))
  "Functions for the reports about the session of a chat.
See `qwen-companion-chat-handlers'.")

(defun qwen-companion-chat--on-session (payload)
  "Show the state of the session in the report PAYLOAD."
  (let ((before (qwen-companion-daemon-session-state qwen-companion-chat-session))
        (began qwen-companion-chat--began))
    (setq qwen-companion-chat-session payload)
    (qwen-companion-chat--rename)
    (qwen-companion-chat--refresh)
    (qwen-companion-chat--call-attention
     before (qwen-companion-daemon-session-state payload) began)))

(defun qwen-companion-chat--refresh ()
  "Show the current state of the session, and send any waiting prompt."
  (qwen-companion-chat--end-reviews)
  (qwen-companion-chat-send-kept)
  (qwen-companion-chat--run-clock)
  (qwen-companion-chat-permissions-redraw)
  (qwen-companion-chat--update))

(defun qwen-companion-chat--end-reviews ()
  "Close the reviews of edits that can no longer be answered or written."
  (let ((text (qwen-companion-daemon-session-text qwen-companion-chat-session)))
    (cond ((qwen-companion-chat-session-ended-p)
           (qwen-companion-chat-review-end
            (concat "the session has ended" (and text (concat ": " text)))))
          ((and (eq 'idle (qwen-companion-daemon-session-state qwen-companion-chat-session))
                (<= qwen-companion-chat--batches-left 0))
           (qwen-companion-chat-review-on-idle)))))

;;; Working

(defun qwen-companion-chat--run-clock ()
  "Note the beginning and the end of a turn, and keep a clock for it."
  (if (qwen-companion-chat--busy-p
       (qwen-companion-daemon-session-state qwen-companion-chat-session))
      (setq qwen-companion-chat--began (or qwen-companion-chat--began (float-time))
            qwen-companion-chat--clock (or qwen-companion-chat--clock
                                           (run-with-timer 1 1 #'qwen-companion-chat--tick)))
    (setq qwen-companion-chat--began nil)
    (qwen-companion-chat--stop-clock)))

(defun qwen-companion-chat--working-chats ()
  "Return the chats that are working."
  (cl-remove-if-not (lambda (chat) (buffer-local-value 'qwen-companion-chat--began chat))
                    (qwen-companion-chat-buffers)))

(defun qwen-companion-chat--stop-clock ()
  "Stop the clock unless a chat is working."
  (unless (qwen-companion-chat--working-chats)
    (qwen-companion-timers-cancel qwen-companion-chat--clock)))

(defun qwen-companion-chat--tick ()
  "Show in visible chats how long they have been working."
  (qwen-companion-chat--stop-clock)
  (dolist (chat (qwen-companion-chat--working-chats))
    (when (get-buffer-window chat t)
      (with-current-buffer chat
        (qwen-companion-chat--update)))))

(defun qwen-companion-chat--call-attention (before state began)
  "Notify the user about this chat's change from the state BEFORE to STATE.
BEGAN is the time at which the last running turn began, nil for none."
  (let ((tell (apply-partially #'qwen-companion-attention-report-chat (current-buffer)))
        (failure qwen-companion-chat--failure))
    (unless (qwen-companion-chat--busy-p state)
      (setq qwen-companion-chat--failure nil))
    (cond
     ((eq before state))
     ((eq state 'waiting) (funcall tell 'asks "asks"))
     ((not (qwen-companion-chat--busy-p before)))
     ((memq state '(dead closed)) (funcall tell 'gone "has ended in the middle of a turn"))
     ((not (eq state 'idle)))
     (failure
      (funcall tell 'failed (concat "failed: " (qwen-companion-untrusted-line failure))))
     (t (let ((seconds (floor (- (float-time) (or began (float-time))))))
          (funcall tell 'done (format "is done after %d s" seconds) seconds))))))

;;; The conversation

(defun qwen-companion-chat--on-reset (payload)
  "Clear the conversation; PAYLOAD has the number of reports that refill it."
  (unless qwen-companion-chat--places
    (setq qwen-companion-chat--places (qwen-companion-chat--window-places)))
  (qwen-companion-chat-blocks-clear)
  (qwen-companion-chat--forget-conversation)
  (setq qwen-companion-chat--batches-left (qwen-companion-daemon-reset-batches payload))
  (qwen-companion-chat--restore-windows)
  (when-let* ((text (qwen-companion-daemon-reset-text payload)))
    (qwen-companion-backend-notice text)))

(defun qwen-companion-chat--forget-conversation ()
  "Forget the tools, permissions and usage of the conversation."
  (qwen-companion-chat-tools-forget)
  (qwen-companion-chat-permissions-forget)
  (setq qwen-companion-chat--usage nil))

(defun qwen-companion-chat--window-places ()
  "Return the positions of all windows that show the conversation.
A list of (WINDOW POINT START), see `qwen-companion-chat--place'."
  (let ((prompt (marker-position qwen-companion-chat-blocks-prompt-start)))
    (cl-loop for window in (get-buffer-window-list nil nil t)
             for point = (window-point window)
             when (< point prompt)
             collect (list window (qwen-companion-chat--place point)
                           (qwen-companion-chat--place (window-start window))))))

(defun qwen-companion-chat--place (position)
  "Return POSITION as (BLOCK-ID . OFFSET), nil when it is in no block."
  (when-let* ((block (qwen-companion-chat-blocks-at position)))
    (cons (qwen-companion-chat-block-id block)
          (- position (qwen-companion-chat-block-start block)))))

(defun qwen-companion-chat--position (place)
  "Return the position of PLACE, (BLOCK-ID . OFFSET), nil if it no longer exists."
  (when-let* ((block (qwen-companion-chat-blocks-get (car place))))
    (min (+ (qwen-companion-chat-block-start block) (cdr place))
         (1- (qwen-companion-chat-block-end block)))))

(defun qwen-companion-chat--restore-windows ()
  "Restore the positions of the windows once the conversation is complete."
  (when (<= qwen-companion-chat--batches-left 0)
    (pcase-dolist (`(,window ,point ,start) qwen-companion-chat--places)
      (when (and (window-live-p window) (eq (window-buffer window) (current-buffer)))
        (when-let* ((point (qwen-companion-chat--position point)))
          (set-window-point window point))
        (when-let* ((start (qwen-companion-chat--position start)))
          (set-window-start window start t))))
    (setq qwen-companion-chat--places nil))
  (qwen-companion-chat--update))

(defun qwen-companion-chat--on-turn (payload)
  "Show each change in the report PAYLOAD."
  (qwen-companion-chat-blocks-changing
    (dolist (change (qwen-companion-daemon-report-changes payload))
      ;; An error in one must not prevent the others.
      (condition-case err
          (qwen-companion-chat--show change)
        (error (qwen-companion-backend-notice
                (format "A part of the conversation cannot be shown: %s"
                        (error-message-string err)))))))
  (when (> qwen-companion-chat--batches-left 0)
    (cl-decf qwen-companion-chat--batches-left)
    (when (zerop qwen-companion-chat--batches-left)
      (qwen-companion-chat--restore-windows))))

(defun qwen-companion-chat--show (change)
  "Show CHANGE of the conversation."
  (pcase (qwen-companion-daemon-change-kind change)
    ('text (qwen-companion-chat--show-text change))
    ('tool (qwen-companion-chat-tools-show change)
           (qwen-companion-chat-permissions-on-tool change))
    ('plan (qwen-companion-chat-tools-show-plan change))
    ('usage (setq qwen-companion-chat--usage change)
            (qwen-companion-chat--update))
    ('end (qwen-companion-chat--show-end change))
    ('note (qwen-companion-chat--show-note
            change (qwen-companion-daemon-note-note change) (qwen-companion-daemon-note-text change)))
    (kind (qwen-companion-chat--show-note change 'unsupported (format "%s" kind)))))

;;; Messages

(defun qwen-companion-chat--heading (change)
  "Return the heading of the user's message in CHANGE."
  (concat
   ;; This character is removed from untrusted text, so no text can look like a
   ;; heading.  An empty display string would move point after a command.
   (propertize "\f" 'display '(space :width 0))
   (propertize (pcase (qwen-companion-daemon-text-by change)
                 ('other "Somebody else\n")
                 (_ "You\n"))
               'face 'qwen-companion-chat-heading
               'qwen-companion-chat-turn (or (qwen-companion-daemon-change-turn change) t)
               'qwen-companion-chat-time (qwen-companion-daemon-text-time change))))

(defun qwen-companion-chat--begin-text (change text)
  "Insert a new block with the TEXT of CHANGE; return its id."
  (let* ((voice (qwen-companion-daemon-text-voice change))
         (id (qwen-companion-chat-blocks-next-id change voice))
         (head (qwen-companion-chat--head change)))
    (qwen-companion-chat-blocks-add
     change id (concat head (qwen-companion-chat-markdown-propertize text voice)
                       (propertize "\n" 'face (qwen-companion-chat-markdown-face voice))))
    (qwen-companion-chat-markdown-begin id (length head) voice)
    id))

(defun qwen-companion-chat--head (change)
  "Return the lines above the text of CHANGE."
  (pcase (qwen-companion-daemon-text-voice change)
    ('user (concat "\n" (if (qwen-companion-daemon-text-parent change)
                            (propertize "To the agent:\n" 'face 'shadow)
                          (qwen-companion-chat--heading change))))
    ('thought (propertize "Thought\n" 'face 'qwen-companion-chat-thought))
    (_ "\n")))

(defun qwen-companion-chat--show-text (change)
  "Show the text of CHANGE, at the end of the previous block if possible."
  (let* ((text (qwen-companion-spool-text change))
         (groups (qwen-companion-chat-blocks-groups-of change))
         (group (car groups))
         (voice (list (qwen-companion-daemon-text-voice change) (qwen-companion-daemon-text-by change)))
         (alone (qwen-companion-daemon-text-background change))
         (goes-on (and (not alone) (equal voice (qwen-companion-chat-group-voice group))))
         (id (if goes-on
                 (qwen-companion-chat-group-last group)
               (qwen-companion-chat--begin-text change text))))
    (setf (qwen-companion-chat-group-voice group) (and (not alone) voice))
    (when goes-on
      (qwen-companion-chat-markdown-append
       id (if (cdr groups)
              (qwen-companion-chat-blocks-indent text "  ")
            text)
       (qwen-companion-daemon-text-voice change)))
    (when (eq 'thought (qwen-companion-daemon-text-voice change))
      (qwen-companion-chat-blocks-make-foldable id t))))

(defun qwen-companion-chat--show-end (change)
  "Show the end of a turn in CHANGE, unless the turn has succeeded."
  (let ((text (qwen-companion-daemon-end-text change))
        (back (qwen-companion-chat-send-on-end change)))
    (setq qwen-companion-chat--failure
          (and (eq 'failed (qwen-companion-daemon-end-outcome change))
               (or text "no reason is known")))
    (when-let* ((said (pcase (qwen-companion-daemon-end-outcome change)
                        ('done nil)
                        ('cancelled "Cancelled")
                        ('removed (concat "Removed from the queue" (and text (concat ": " text))))
                        ('lost (concat "Lost with the queue" (and back ", and in the input again")
                                       (and text (concat ": " text))))
                        ('failed (concat "Failed" (and text (concat ": " text)) "\n"
                                         (qwen-companion-chat--kept-hint)))
                        (_ (format "Ended: %s" text)))))
      (qwen-companion-chat-blocks-add
       change (list 'end (qwen-companion-daemon-change-turn change))
       (propertize said 'face 'warning)))))

(defun qwen-companion-chat--kept-hint ()
  "Return the hint that the prompt of a failed turn stays in the conversation."
  (substitute-command-keys
   "The agent still has this prompt, and may carry it out with the next one; \
\\<qwen-companion-chat-mode-map>\\[qwen-companion-rewind] goes back to before it"))

(defun qwen-companion-chat--show-note (change note text)
  "Show NOTE, a symbol, with TEXT at the position of CHANGE."
  (qwen-companion-chat-blocks-add
   change (qwen-companion-chat-blocks-next-id change 'note)
   (pcase note
     ('unsupported (propertize (format "Unsupported: %s; it cannot be shown here" text)
                               'face 'warning))
     ('injected (format "Sent during the turn: %s" text))
     ('suggestion (concat "Suggested: " (qwen-companion-chat-blocks-button text #'qwen-companion-chat--insert-suggestion text)))
     ('setting (propertize (format "A setting was rewritten on the daemon's host: %s" text)
                           'face 'warning))
     ('truncated (propertize (format "%s earlier events are not shown" text)
                             'face 'warning))
     ('rewound (propertize
                (if (equal text "0")
                    "The session was rewound to its beginning; everything above is forgotten"
                  (format "The session was rewound to the end of turn %s; everything after it is forgotten"
                          text))
                'face 'warning))
     ('model-failed (propertize (format "The model was not changed: %s" text) 'face 'warning))
     (_ (format "%s: %s" note text)))))

(defun qwen-companion-chat--insert-suggestion (text)
  "Insert TEXT, a suggested prompt, at the beginning of the prompt."
  (qwen-companion-chat-send-restore text)
  (goto-char (point-max)))

;;; Moving

(defun qwen-companion-chat-next-turn (&optional count)
  "Move to the COUNTth turn after point, or past the last one to the prompt."
  (interactive "p" qwen-companion-chat-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-chat-mode)
  (let ((count (or count 1)))
    (goto-char (if (< count 0) (line-beginning-position) (line-end-position)))
    (unless (search-forward "\f" (and (> count 0) qwen-companion-chat-blocks-prompt-start) t count)
      (if (< count 0)
          (user-error "No turn before this one")
        (goto-char (point-max))))
    (when (< (point) qwen-companion-chat-blocks-prompt-start)
      (beginning-of-line))))

(defun qwen-companion-chat-previous-turn (&optional count)
  "Move to the COUNTth turn before point."
  (interactive "p" qwen-companion-chat-mode)
  (qwen-companion-chat-next-turn (- (or count 1))))

(defun qwen-companion-chat--index ()
  "Return an Imenu index with an entry for each turn."
  (save-excursion
    (goto-char (point-min))
    (let (turns)
      (while (search-forward "\f" qwen-companion-chat-blocks-prompt-start t)
        (let ((start (line-beginning-position)))
          (forward-line)
          (push (cons (truncate-string-to-width
                       (buffer-substring-no-properties (point) (line-end-position))
                       60 nil nil t)
                      (copy-marker start))
                turns)))
      (nreverse turns))))

;;; The mode

(defun qwen-companion-chat--waits-p ()
  "Return non-nil when a question waits for an answer in this chat."
  (eq 'waiting (qwen-companion-daemon-session-state qwen-companion-chat-session)))

(qwen-companion-header-define-keys qwen-companion-chat-mode "Chat"
  ("RET" qwen-companion-chat-return nil)
  ;; In `text-mode', the second key completes words of a dictionary.
  (("TAB" "C-M-i") completion-at-point nil)
  ("C-c C-c" qwen-companion-chat-send "Send the Prompt")
  ("C-c C-k" qwen-companion-chat-cancel "Cancel"
   :if (memq (qwen-companion-daemon-session-state qwen-companion-chat-session) '(busy waiting)))
  ("C-c C-d" qwen-companion-chat-remove-queued "Take a Prompt out of the Queue"
   :if (qwen-companion-daemon-session-queue qwen-companion-chat-session))
  "---"
  (nil qwen-companion-chat-answer "Answer the Question..." :if (qwen-companion-chat--waits-p))
  ("C-c C-v" qwen-companion-chat-show-change "Show All It Is About"
   :if (qwen-companion-chat--waits-p))
  "---"
  ("C-c C-p" qwen-companion-chat-previous-turn "Previous Turn")
  ("C-c C-n" qwen-companion-chat-next-turn "Next Turn")
  (nil qwen-companion-chat-toggle-fold "Fold or Open at Point")
  (nil qwen-companion-chat-toggle-all-folds "Fold or Open All")
  ("C-c C-t" qwen-companion-chat-toggle-markup "Show or Hide Markup")
  ("M-p" qwen-companion-chat-previous-prompt "Previous Prompt")
  ("M-n" qwen-companion-chat-next-prompt nil)
  ("M-r" qwen-companion-chat-search-prompt "Search the Prompts...")
  ("C-c C-y" qwen-companion-chat-paste-image "Paste the Image of the Clipboard")
  "---"
  ("C-c C-w" qwen-companion-chat-copy-code "Copy the Code Block")
  ("C-c TAB" qwen-companion-chat-insert-code "Insert It into the Last File")
  ("C-c C-e" qwen-companion-chat-export "Export...")
  "---"
  ("C-c C-m" qwen-companion-chat-set-mode "Approval Mode...")
  ("C-c M-m" qwen-companion-chat-set-model "Model...")
  ("C-c C-u" qwen-companion-chat-show-usage "What Fills the Context")
  "---"
  (nil (qwen-companion-chat t) "New Chat")
  ("C-c C-f" qwen-companion-chat-fork "Go On in a Copy")
  ("C-c C-r" qwen-companion-rewind "Rewind to Before the Prompt")
  (nil qwen-companion-chat-switch "Go to a Chat...")
  (nil qwen-companion-chats "List of Sessions")
  ("C-c C-l" qwen-companion-chat-reload "Read It Again"))

(define-key qwen-companion-chat-mode-map (kbd "C-c C-a") qwen-companion-chat-answer-map)
(define-key qwen-companion-chat-conversation-map "n" #'qwen-companion-chat-next-turn)
(define-key qwen-companion-chat-conversation-map "p" #'qwen-companion-chat-previous-turn)

(defconst qwen-companion-chat--hooks
  '((kill-emacs-query-functions . qwen-companion-chat--exit-p)
    (auto-save-hook . qwen-companion-chat--keep-drafts))
  "Hooks in use while there are chats: (HOOK . FUNCTION).")

(defconst qwen-companion-chat--own-commands
  '(("clear" "begin a new chat; this one stays" qwen-companion-chat--clear))
  "Slash commands done here, see `qwen-companion-chat-send-own-commands'.")

(define-derived-mode qwen-companion-chat-mode text-mode "Chat"
  "Major mode of a chat with `qwen serve'.
The conversation is above, the prompt below the line.

Files, commands, MCP servers, skills and credentials are those of the
daemon's host: a prompt is about the files there, and the daemon cannot
use anything that only this Emacs has.  The header line names the host.
Info node `(qwen-companion)Chat' is about it.
\\<qwen-companion-chat-mode-map>
In the prompt, edited like any text:

\\[qwen-companion-chat-send]	send it
\\[qwen-companion-chat-return]	begin a line, or send, as the option
	`qwen-companion-chat-return' says
\\[qwen-companion-chat-previous-prompt], \\[qwen-companion-chat-next-prompt]	go through the prompts sent before
\\[qwen-companion-chat-search-prompt]	choose from the prompts sent before
\\[completion-at-point]	complete @file and /command
\\[qwen-companion-chat-paste-image]	send the image of the clipboard with it

While it works:

\\[qwen-companion-chat-cancel]	cancel
\\[qwen-companion-chat-remove-queued]	take a prompt out of the queue, to edit it
\\[qwen-companion-chat-answer]	choose the answer to the question that waits by its name;
	each also has a key, which is beside it.  At the question, y
	allows once, n rejects, and ! allows for this session
\\[qwen-companion-chat-show-change]	show all of the command or the change that it is about

Everywhere:

\\[qwen-companion-chat-previous-turn], \\[qwen-companion-chat-next-turn]	go from turn to turn
\\[qwen-companion-chat-copy-code]	copy the code block at point, else the last one
\\[qwen-companion-chat-insert-code]	insert it at point in the last file
\\[qwen-companion-chat-toggle-markup]	show or hide the markup of answers
\\[qwen-companion-chat-export]	write the chat to a Markdown or Org file
\\[qwen-companion-chat-fork]	go on in a copy of the conversation, in a new chat
\\[qwen-companion-rewind]	go back to before the prompt at point, files and conversation
\\[qwen-companion-chat-set-mode], \\[qwen-companion-chat-set-model]	choose the approval mode, the model
\\[qwen-companion-chat-show-usage]	show what fills the context window
\\[qwen-companion-chat-reload]	read the conversation again; load a session that has ended
\\<qwen-companion-chat-conversation-map>
In the conversation also, where a click does what RET does:

\\[qwen-companion-chat-toggle-fold]	open or fold the thoughts or the tool at point
\\[qwen-companion-chat-toggle-all-folds]	open all of them, or fold all
RET	do so on their first line; follow a link, choose an option
\\[qwen-companion-chat-previous-turn], \\[qwen-companion-chat-next-turn]	go from turn to turn
\\[qwen-companion-chat-copy-code], \\[qwen-companion-chat-insert-code]	copy, insert a code block
\\[qwen-companion-chat-reload]	read it again
\\[quit-window]	quit the window"
  :interactive nil
  (setq-local qwen-companion-chat-handlers qwen-companion-chat--handlers
              qwen-companion-chat-send-own-commands qwen-companion-chat--own-commands
              word-wrap t
              ;; Most lines are continued.
              fringe-indicator-alist (cons '(continuation nil nil) fringe-indicator-alist)
              filter-buffer-substring-function #'qwen-companion-chat--substring
              header-line-format '("" qwen-companion-chat--header)
              mode-line-process '("" qwen-companion-chat--mode-line)
              imenu-create-index-function #'qwen-companion-chat--index
              qwen-companion-rewind-target-function #'qwen-companion-chat-rewind-target
              outline-regexp "\f"
              outline-level (lambda () 1)
              revert-buffer-function #'qwen-companion-chat-reload
              ;; Each line has its own direction.  Otherwise Emacs would search
              ;; back over all the tools for the paragraph of each line.
              bidi-paragraph-start-re "^"
              bidi-paragraph-separate-re "^"
              ;; Scroll line by line when text is added at the end.
              scroll-conservatively 101
              buffer-auto-save-file-name nil)
  (qwen-companion-chat-blocks-set-up
   (substitute-command-keys
    " \\[qwen-companion-chat-send] send   \\[qwen-companion-chat-cancel] cancel   \\[describe-mode] all keys"))
  (qwen-companion-chat-blocks-enable-search)
  (qwen-companion-chat--forget-conversation)
  (qwen-companion-chat-markdown-enable)
  (qwen-companion-chat-send-enable)
  (setq-local mode-line-buffer-identification
              '((:eval (qwen-companion-chat--identification))))
  (add-hook 'qwen-companion-chat-session-hook #'qwen-companion-chat--refresh nil t)
  (qwen-companion-buffers-set-hooks qwen-companion-chat--hooks t)
  (add-hook 'kill-buffer-query-functions #'qwen-companion-chat--kill-p nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-chat--killed nil t)
  (add-hook 'change-major-mode-hook #'qwen-companion-chat--killed nil t)
  (qwen-companion-chat--update))

(defun qwen-companion-chat--clear ()
  "Begin a new chat in place of `/clear', which would end the session.
A session of 0.24.4 accepts no prompt after that."
  (let ((old (buffer-name)))
    (qwen-companion-chat t)
    (message "A new chat has begun; the old one is in %s" old)))

(defun qwen-companion-chat--substring (start end &optional delete)
  "Return the text from START to END without properties.
With DELETE non-nil, delete it."
  (substring-no-properties (buffer-substring--filter start end delete)))

(defun qwen-companion-chat--kill-p ()
  "Return non-nil if the buffer may be killed; ask when a prompt is unsent."
  (or (qwen-companion-chat-send-empty-p)
      (yes-or-no-p "The prompt has not been sent; kill the chat? ")))

(defun qwen-companion-chat--exit-p ()
  "Return non-nil if Emacs may exit; ask when a prompt is unsent in a chat."
  (let ((unsent (cl-remove-if (lambda (buffer)
                                (with-current-buffer buffer
                                  (qwen-companion-chat-send-empty-p)))
                              (qwen-companion-chat-buffers))))
    (or (not unsent)
        (yes-or-no-p (format "The prompt in %s has not been sent; exit anyway? "
                             (mapconcat #'buffer-name unsent ", "))))))

(defun qwen-companion-chat--draft-name ()
  "Return the name of the buffer with the unsent prompt of this chat."
  (format " *qwen-companion draft: %s*" (buffer-name)))

(defun qwen-companion-chat--keep-drafts ()
  "Have Emacs save the unsent text of chats; it is about to auto-save."
  (dolist (chat (qwen-companion-chat-buffers))
    (with-current-buffer chat
      (qwen-companion-drafts-set (qwen-companion-chat--draft-name)
                                 (qwen-companion-chat-send-unsent)
                                 (directory-file-name default-directory)))))

(defun qwen-companion-chat--killed ()
  "Leave the session of this buffer; other clients keep it."
  (qwen-companion-chat-review-end "its chat was killed")
  (qwen-companion-chat-leave-session)
  (setq qwen-companion-chat--began nil)
  (qwen-companion-chat--stop-clock)
  (qwen-companion-drafts-set (qwen-companion-chat--draft-name) nil nil)
  (unless (remq (current-buffer) (qwen-companion-chat-buffers))
    (qwen-companion-buffers-set-hooks qwen-companion-chat--hooks nil)))

(defun qwen-companion-chat-make-buffer (id)
  "Return a new chat buffer for the session ID, nil for a new session.
The session is opened once a daemon is connected."
  (let ((buffer (generate-new-buffer "*qwen chat*")))
    (with-current-buffer buffer
      (qwen-companion-chat-mode)
      (setq qwen-companion-chat--names (cons (qwen-companion-chat--name) (buffer-name)))
      (qwen-companion-chat-open-session id))
    buffer))

(defun qwen-companion-chat-fork ()
  "Continue in a copy of this conversation, in a new chat; this one stays.
The copy ends with the last turn that has ended."
  (interactive nil qwen-companion-chat-mode)
  (unless qwen-companion-chat-session-id
    (user-error "No session yet"))
  (when-let* ((trouble (qwen-companion-chat-trouble)))
    (user-error "%s" trouble))
  (qwen-companion-chat-call
   'daemon-fork (list :session qwen-companion-chat-session-id)
   (lambda (reply)
     (if-let* ((error (qwen-companion-daemon-reply-error reply)))
         (qwen-companion-backend-notice error)
       (let ((asked (eq (current-buffer) (window-buffer)))
             (fork (qwen-companion-chat-make-buffer
                    (qwen-companion-daemon-reply-session reply))))
         ;; A user who has gone elsewhere meanwhile stays there.
         (if (and asked (not (active-minibuffer-window)))
             (progn (pop-to-buffer-same-window fork)
                    (goto-char (point-max)))
           (message "The copy of the conversation is in %s" (buffer-name fork))))))))

(defun qwen-companion-chat--open-copy (copy)
  "Open a chat with the conversation COPY if a chat has made it by a rewind.
For `qwen-companion-rewind-return-functions'."
  (when (string-prefix-p qwen-companion-chat-rewind-copy copy)
    (let ((id (string-remove-prefix qwen-companion-chat-rewind-copy copy)))
      (qwen-companion-chat-connect-daemon nil)
      (pop-to-buffer (or (qwen-companion-chat-buffer id)
                         (qwen-companion-chat-make-buffer id))))
    t))

(add-hook 'qwen-companion-rewind-return-functions #'qwen-companion-chat--open-copy)

;;;###autoload
(defun qwen-companion-chat (&optional new)
  "Show the most recent chat with `qwen serve', or begin one.
With the prefix argument NEW, or in the list of chats, begin another.
Without a daemon, connect as `qwen-companion-daemon-connect' does; if the
chat had a daemon, use that one again."
  (interactive (list (or current-prefix-arg (derived-mode-p 'qwen-companion-chats-mode))))
  (let ((chat (and (not new) (car (qwen-companion-chat-buffers))))
        (connected (not (memq (qwen-companion-daemon-state) '(off refused)))))
    (qwen-companion-chat-connect-daemon chat)
    (let ((buffer (or chat (qwen-companion-chat-make-buffer nil))))
      (with-current-buffer buffer
        (when (or (eq 'off (qwen-companion-daemon-session-state qwen-companion-chat-session))
                  ;; It may have ended because the daemon refused its token.
                  (and (not connected) (qwen-companion-chat-session-ended-p)))
          (qwen-companion-chat-open-session qwen-companion-chat-session-id)))
      (pop-to-buffer buffer)
      (goto-char (point-max)))))

(provide 'qwen-companion-chat)
;;; qwen-companion-chat.el ends here
