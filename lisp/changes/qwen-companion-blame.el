;;; qwen-companion-blame.el --- Who wrote each line of a file  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The left margin names the author of each line: an agent, with its prompt,
;; or the user; it is empty for lines from before the journal.  The journal
;; also attributes unsaved text.  Only the lines in windows have overlays:
;; thousands of them would slow down each key before Emacs 29.  The overlays
;; stay on their lines while the user types; new lines get theirs in the next
;; pause.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-changes-items)
(require 'qwen-companion-disk)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-spool)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

;; Loaded with the buffer of changes.
(declare-function qwen-companion-changes-show-turn "qwen-companion-changes" (id path))

(defcustom qwen-companion-blame-width 32
  "Width of the margin in which `qwen-companion-blame' names the author of a line."
  :group 'qwen-companion
  :type 'natnum)

(defface qwen-companion-blame-agent
  '((t :inherit (success default)))
  "Face of the margin of lines that an agent wrote."
  :group 'qwen-companion)

(defface qwen-companion-blame-user
  '((t :inherit (shadow default)))
  "Face of the margin of lines that you wrote since the journal began."
  :group 'qwen-companion)

(defconst qwen-companion-blame--pause 0.5
  "Idle seconds before the authors of changed text are updated.")

(defconst qwen-companion-blame--asking "Asking the journal..."
  "Message until the journal has answered.")

(defvar qwen-companion-blame--timer nil
  "Idle timer that updates changed buffers, while the mode is on in one.")

(defvar qwen-companion-blame-mode)

(defvar-local qwen-companion-blame--request-tick nil
  "The tick of the text in the last request to the journal.")
(defvar-local qwen-companion-blame--numbers []
  "Vector with three numbers for each run of lines: first line, count, style.
They describe the text of the last answer of the journal.")
(defvar-local qwen-companion-blame--styles []
  "Vector of origins; an origin that was drawn is replaced by (TURN LABEL BAR).")
(defvar-local qwen-companion-blame--was-read-only nil
  "Non-nil when the buffer was read-only before the mode was turned on.")

;;; Asking

(defun qwen-companion-blame--path ()
  "Return the file of the current buffer as the journal knows it, or nil."
  (when-let* ((file (buffer-file-name (or (buffer-base-buffer) (current-buffer)))))
    (if (qwen-companion-places-remote-p file)
        (and (qwen-companion-places-root file) file)
      (expand-file-name buffer-file-truename))))

(defun qwen-companion-blame--check ()
  "Signal a `user-error' unless the journal can be asked about the buffer."
  (when (eq 'off (qwen-companion-state))
    (user-error "The companion is off and has no journal; turn it on with M-x qwen-companion-mode"))
  (unless (qwen-companion-blame--path)
    (user-error "Not in a file of a project")))

(defun qwen-companion-blame--text ()
  "Return the current buffer as it would be saved, as part of a payload."
  (qwen-companion-buffers-widened
    (let ((coding (or buffer-file-coding-system 'utf-8-unix)))
      (or (and (memq (coding-system-base coding) '(utf-8 undecided prefer-utf-8))
               (qwen-companion-buffers-unicode-p)
               ;; No copy is made: its garbage would cost more than all else.
               (ignore-error file-error
                 (append (qwen-companion-spool-pack-buffer)
                         (and (eq 1 (coding-system-eol-type coding)) '(:crlf t)))))
          (append '(:encoded t)
                  (qwen-companion-spool-pack
                   (base64-encode-string
                    (encode-coding-string (buffer-substring-no-properties (point-min) (point-max))
                                          coding t)
                    t)))))))

(defun qwen-companion-blame--ask (callback)
  "Request the authors of the lines of the current buffer, unsaved ones too.
Call CALLBACK with nil, a vector with three numbers for each run of lines
\(first line, number of lines, index of the origin), and the list of the
origins; or with the reason why there is no answer."
  (qwen-companion-journal-ask
   'journal-origins
   (append (list :path (qwen-companion-blame--path))
           (and (buffer-modified-p)
                (qwen-companion-blame--text)))
   (lambda (reply)
     (if-let* ((reason (qwen-companion-journal-error reply)))
         (funcall callback reason nil nil)
       (funcall callback nil
                (qwen-companion-spool-numbers (qwen-companion-journal-reply-runs reply))
                (qwen-companion-journal-reply-origins reply))))))

(defun qwen-companion-blame--request ()
  "Request the authors of the lines of the current buffer, and show them."
  (let ((buffer (current-buffer))
        (tick (setq qwen-companion-blame--request-tick (buffer-chars-modified-tick))))
    (qwen-companion-blame--ask
     (lambda (reason numbers origins)
       (qwen-companion-buffers-when-live buffer
         ;; If the text has changed again, the next pause sends a new request.
         (when (and qwen-companion-blame-mode
                    (eql tick (buffer-chars-modified-tick)))
           (if (not reason)
               (progn
                 (setq qwen-companion-blame--numbers numbers
                       qwen-companion-blame--styles (vconcat origins))
                 (when (equal qwen-companion-blame--asking (current-message))
                   (message nil))
                 (qwen-companion-blame--draw))
             (qwen-companion-blame-mode -1)
             (message "The authors of these lines are unknown: %s" reason))))))))

;;; In words

(defun qwen-companion-blame--label (mine known)
  "Return a short text for the author of lines.
KNOWN is (ORIGIN . PROMPT) of their turn, or nil for no turn.  MINE is
non-nil if the user has changed them since."
  (concat
   (when mine
     (if known "you, over " "you"))
   (when known
     (pcase-let ((`(,origin . ,prompt) known))
       (format "%s %s  %s"
               (qwen-companion-changes-items-time (qwen-companion-turn-origin-start origin))
               (truncate-string-to-width
                (or (qwen-companion-changes-items-models origin)
                    (qwen-companion-changes-items-client-name
                     (qwen-companion-turn-origin-client origin)))
                12 nil nil t)
               (qwen-companion-untrusted-line
                (substring prompt 0 (min 200 (length prompt)))))))))

(defun qwen-companion-blame--help (mine turn)
  "Describe the author of lines of TURN, and its prompt.
MINE non-nil means that the user wrote the lines, over lines of TURN or,
if TURN is nil, over none of an agent."
  (concat (when mine
            (if turn "You, over a line of " "You"))
          (and turn (qwen-companion-changes-items-help turn))))

;;; Showing

(defun qwen-companion-blame--prefix (text mine turn)
  "Return a prefix of lines of TURN, with TEXT in the margin; MINE as in the help."
  (propertize
   " " 'display
   `((margin left-margin)
     ,(propertize (string-pad (truncate-string-to-width
                               text (1- qwen-companion-blame-width) nil nil t)
                              qwen-companion-blame-width)
                  'face (if mine 'qwen-companion-blame-user 'qwen-companion-blame-agent)
                  'help-echo (lambda (&rest _) (qwen-companion-blame--help mine turn))))))

(defun qwen-companion-blame--style (index)
  "Return style INDEX as (TURN LABEL BAR), prefixes of lines.
Return nil until the prompt of its turn is known."
  (let ((style (aref qwen-companion-blame--styles index)))
    (if (not (keywordp (car style)))
        style
      (let* ((mine (eq 'user (qwen-companion-line-origin-who style)))
             (turn (qwen-companion-line-origin-turn style))
             (known (and turn (qwen-companion-journal-prompt turn))))
        (when (or known (null turn))
          (aset qwen-companion-blame--styles index
                (list turn
                      (qwen-companion-blame--prefix (qwen-companion-blame--label mine known)
                                                    mine turn)
                      (qwen-companion-blame--prefix "|" mine turn))))))))

(defun qwen-companion-blame--draw ()
  "Mark the lines in the windows of the current buffer, and no others.
Do nothing while the text is newer than the answer of the journal."
  (when (and qwen-companion-blame-mode
             (eql qwen-companion-blame--request-tick (buffer-chars-modified-tick)))
    (qwen-companion-blame--clear)
    (let (unknown)
      (dolist (window (get-buffer-window-list nil nil t))
        (let* ((start (window-start window))
               (first (line-number-at-pos start t))
               (last (+ first (* 2 (window-body-height window)))))
          (qwen-companion-buffers-widened
            (goto-char start)
            (forward-line 0)
            (cl-loop
             with numbers = qwen-companion-blame--numbers
             with line = first
             for index from 0 below (length numbers) by 3
             for from = (aref numbers index)
             for to = (+ from (aref numbers (1+ index)))
             for style = (aref numbers (+ 2 index))
             until (> from last)
             when (> to first)
             do (let ((here (max from first))
                      (drawn (qwen-companion-blame--style style)))
                  (forward-line (- here line))
                  (setq line here)
                  (if (null drawn)
                      (push (qwen-companion-blame--turn style) unknown)
                    (let ((start (point)))
                      (forward-line (- (min to last) here))
                      (setq line (min to last))
                      (qwen-companion-blame--mark start (point) (= here from) drawn))))))))
      (when unknown
        (qwen-companion-journal-fetch-prompts
         unknown
         (let ((buffer (current-buffer)))
           (lambda (failed)
             (unless failed
               (qwen-companion-buffers-when-live buffer
                 (qwen-companion-blame--draw))))))))))

(defun qwen-companion-blame--turn (style)
  "Return the id of the turn of STYLE, an index, or nil."
  (let ((style (aref qwen-companion-blame--styles style)))
    (if (keywordp (car style)) (qwen-companion-line-origin-turn style) (car style))))

(defun qwen-companion-blame--mark (start end whole style)
  "Mark the lines from START to END with STYLE.
The first one has the label if WHOLE is non-nil."
  (pcase-let ((`(,turn ,label ,bar) style))
    (when (< start end)
      (let ((lines (make-overlay start end nil t nil)))
        (overlay-put lines 'qwen-companion-blame t)
        (overlay-put lines 'qwen-companion-blame-turn turn)
        (overlay-put lines 'evaporate t)
        (overlay-put lines 'line-prefix bar))
      (when whole
        ;; Only this line: a line inserted below it gets the bar.
        (let ((first (make-overlay start (1+ start) nil t nil)))
          (overlay-put first 'qwen-companion-blame t)
          (overlay-put first 'evaporate t)
          (overlay-put first 'priority 1)
          (overlay-put first 'line-prefix label))))))

(defun qwen-companion-blame--clear ()
  "Remove every mark."
  (qwen-companion-buffers-widened
    (remove-overlays nil nil 'qwen-companion-blame t)))

;;; Following

(defun qwen-companion-blame--scrolled (window _start)
  "Mark the lines in WINDOW, which has been scrolled."
  (with-current-buffer (window-buffer window)
    (qwen-companion-blame--draw)))

(defun qwen-companion-blame--buffers ()
  "Return the buffers in which the mode is on."
  (cl-remove-if-not (lambda (buffer) (buffer-local-value 'qwen-companion-blame-mode buffer))
                    (buffer-list)))

(defun qwen-companion-blame--refresh ()
  "Update each visible buffer whose text has changed, for an idle timer."
  (dolist (buffer (qwen-companion-blame--buffers))
    (with-current-buffer buffer
      (when (and (get-buffer-window buffer 'visible)
                 (not (eql qwen-companion-blame--request-tick (buffer-chars-modified-tick))))
        (qwen-companion-blame--request)))))

(defun qwen-companion-blame--journal-changed (paths)
  "Update the buffers of the files PATHS, or all if PATHS is t."
  (dolist (buffer (qwen-companion-blame--buffers))
    (with-current-buffer buffer
      (when (or (eq paths t) (member (qwen-companion-blame--path) paths))
        (qwen-companion-blame--request)))))

(defun qwen-companion-blame--state-changed (state)
  "Turn the mode off everywhere when STATE of the companion is `off'."
  (when (eq state 'off)
    (dolist (buffer (qwen-companion-blame--buffers))
      (with-current-buffer buffer
        (qwen-companion-blame-mode -1)))))

(defun qwen-companion-blame--update-hooks ()
  "Follow the journal and the text while the mode is on in a buffer."
  (let ((on (qwen-companion-blame--buffers)))
    (qwen-companion-buffers-set-hooks
     '((qwen-companion-journal-changed-functions . qwen-companion-blame--journal-changed)
       (qwen-companion-state-functions . qwen-companion-blame--state-changed))
     on)
    (qwen-companion-timers-cancel qwen-companion-blame--timer)
    (when on
      (setq qwen-companion-blame--timer
            (run-with-idle-timer qwen-companion-blame--pause t
                                 #'qwen-companion-blame--refresh)))
    (unless (eq 'off (qwen-companion-state))
      (qwen-companion-journal-watch 'blame (and on t)))))

(defun qwen-companion-blame--killed ()
  "Turn the mode off: the buffer is being killed, or gets another major mode."
  (qwen-companion-blame-mode -1))

;;; The mode

(defun qwen-companion-blame--when-read-only (command)
  "Return COMMAND if the current buffer is read-only; else keys type text."
  (and buffer-read-only command))

(defun qwen-companion-blame--key (command)
  "Return a binding of COMMAND that is only active in a read-only buffer."
  (list 'menu-item "" command :filter #'qwen-companion-blame--when-read-only))

(defvar qwen-companion-blame-mode-map
  (qwen-companion-buffers-keymap
   "n" (qwen-companion-blame--key #'qwen-companion-blame-next)
   "p" (qwen-companion-blame--key #'qwen-companion-blame-previous)
   "N" (qwen-companion-blame--key #'qwen-companion-blame-next-of-turn)
   "P" (qwen-companion-blame--key #'qwen-companion-blame-previous-of-turn)
   "RET" (qwen-companion-blame--key #'qwen-companion-blame-show-turn)
   "d" (qwen-companion-blame--key #'qwen-companion-blame-show-turn)
   "l" (qwen-companion-blame--key #'qwen-companion-blame-show-turn)
   "M-w" (qwen-companion-blame--key #'qwen-companion-blame-copy-prompt)
   "q" (qwen-companion-blame--key #'qwen-companion-blame-mode))
  "Keymap of `qwen-companion-blame-mode', in use while the buffer is read-only.")

(define-minor-mode qwen-companion-blame-mode
  "Show in the margin who wrote each line, see `qwen-companion-blame'.
The buffer becomes read-only.  While it is, it has these keys:
\\{qwen-companion-blame-mode-map}"
  :lighter " Who"
  :interactive (text-mode prog-mode conf-mode)
  (cond
   (qwen-companion-blame-mode
    (condition-case err
        (qwen-companion-blame--check)
      (user-error
       (setq qwen-companion-blame-mode nil)
       (signal (car err) (cdr err))))
    (unless qwen-companion-disk-read-only-view
      (setq qwen-companion-blame--was-read-only buffer-read-only))
    (setq qwen-companion-disk-read-only-view t
          buffer-read-only t)
    (add-hook 'kill-buffer-hook #'qwen-companion-blame--killed nil t)
    (add-hook 'change-major-mode-hook #'qwen-companion-blame--killed nil t)
    (add-hook 'window-scroll-functions #'qwen-companion-blame--scrolled nil t)
    (qwen-companion-buffers-set-left-margin 'blame qwen-companion-blame-width)
    (qwen-companion-blame--request))
   (t
    (when qwen-companion-disk-read-only-view
      (setq buffer-read-only qwen-companion-blame--was-read-only))
    (kill-local-variable 'qwen-companion-disk-read-only-view)
    (remove-hook 'kill-buffer-hook #'qwen-companion-blame--killed t)
    (remove-hook 'change-major-mode-hook #'qwen-companion-blame--killed t)
    (remove-hook 'window-scroll-functions #'qwen-companion-blame--scrolled t)
    (qwen-companion-buffers-set-left-margin 'blame 0)
    (qwen-companion-blame--clear)))
  (qwen-companion-blame--update-hooks))

;;;###autoload
(defun qwen-companion-blame ()
  "Show who wrote each line of this file: an agent, with its prompt, or you.
The margin is empty for lines from before the journal.  The mouse on the
margin shows the prompt.
\\<qwen-companion-blame-mode-map>
The buffer becomes read-only: \\[qwen-companion-blame-next] and \\[qwen-companion-blame-previous] go from one author to the next,
\\[qwen-companion-blame-next-of-turn] and \\[qwen-companion-blame-previous-of-turn] through the lines of one turn; \\[qwen-companion-blame-show-turn] shows the turn,
\\[qwen-companion-blame-copy-prompt] copies its prompt and \\[qwen-companion-blame-mode] ends.  \\[read-only-mode] lets you edit; what you
type is yours in the next pause."
  (interactive)
  (qwen-companion-blame--check)
  (message qwen-companion-blame--asking)
  (qwen-companion-blame-mode))

;;;###autoload
(defun qwen-companion-blame-line ()
  "Say who wrote the line at point."
  (interactive)
  (qwen-companion-blame--check)
  (message qwen-companion-blame--asking)
  (let ((line (line-number-at-pos nil t)))
    (qwen-companion-blame--ask
     (lambda (reason numbers origins)
       (let* ((found (cl-loop for index from 0 below (length numbers) by 3
                              for start = (aref numbers index)
                              when (and (<= start line)
                                        (< line (+ start (aref numbers (1+ index)))))
                              return (nth (aref numbers (+ 2 index)) origins)))
              (turn (and found (qwen-companion-line-origin-turn found)))
              (show (lambda (&rest _)
                      (message "%s" (qwen-companion-blame--help
                                     (eq 'user (qwen-companion-line-origin-who found)) turn)))))
         (cond (reason (message "%s" reason))
               ((null found) (message "Not changed since the journal began"))
               ;; Show the turn even if its prompt is unknown.
               ((and turn (qwen-companion-journal-fetch-prompts (list turn) show)))
               (t (funcall show))))))))

(defun qwen-companion-blame-next (&optional count turn)
  "Go to the next lines of another author, or forward by COUNT authors.
With TURN, go to lines of TURN only."
  (interactive "p" qwen-companion-blame-mode)
  (let* ((count (or count 1))
         (line (line-number-at-pos nil t))
         (starts (cl-loop for index from 0 below (length qwen-companion-blame--numbers) by 3
                          for style = (aref qwen-companion-blame--numbers (+ 2 index))
                          when (or (null turn) (equal turn (qwen-companion-blame--turn style)))
                          collect (aref qwen-companion-blame--numbers index)))
         (start (nth (1- (abs count))
                     (if (> count 0)
                         (cl-remove-if (lambda (start) (<= start line)) starts)
                       (cl-remove-if (lambda (start) (>= start line)) (nreverse starts))))))
    (unless start
      (user-error "No more lines %s" (if (> count 0) "below" "above")))
    (forward-line (- start line))))

(defun qwen-companion-blame-previous (&optional count)
  "Go to the previous lines of another author, or back by COUNT authors."
  (interactive "p" qwen-companion-blame-mode)
  (qwen-companion-blame-next (- (or count 1))))

(defun qwen-companion-blame-next-of-turn (&optional count)
  "Go to the next lines of this line's turn, or forward by COUNT."
  (interactive "p" qwen-companion-blame-mode)
  (qwen-companion-blame-next (or count 1) (qwen-companion-blame--turn-at-point)))

(defun qwen-companion-blame-previous-of-turn (&optional count)
  "Go to the COUNTth previous lines written by the turn of this line."
  (interactive "p" qwen-companion-blame-mode)
  (qwen-companion-blame-next-of-turn (- (or count 1))))

(defun qwen-companion-blame--turn-at-point ()
  "Return the turn that wrote the line at point, or wrote it before the user."
  (or (cl-loop for overlay in (overlays-at (line-beginning-position))
               thereis (overlay-get overlay 'qwen-companion-blame-turn))
      (user-error "No agent has written this line")))

(defun qwen-companion-blame-show-turn ()
  "Show the turn that wrote the line at point, or its version before your edit."
  (interactive nil qwen-companion-blame-mode)
  (qwen-companion-changes-show-turn (qwen-companion-blame--turn-at-point)
                                    (qwen-companion-blame--path)))

(defun qwen-companion-blame-copy-prompt ()
  "Copy the prompt of the line at point, or the region if it is active."
  (interactive nil qwen-companion-blame-mode)
  (if (use-region-p)
      (call-interactively #'kill-ring-save)
    (kill-new (cdr (qwen-companion-journal-prompt (qwen-companion-blame--turn-at-point))))
    (message "Copied the prompt")))

(provide 'qwen-companion-blame)
;;; qwen-companion-blame.el ends here
