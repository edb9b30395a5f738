;;; qwen-companion-review-ediff.el --- Reviews with Ediff  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; The front end that shows a proposal with Ediff: the text on disk as
;; variant A, the proposal as variant B, on demand the user's unsaved text
;; as variant C, the control panel below.
;;
;; The windows are laid out here and not by Ediff, so that the selected
;; window (the terminal, usually) stays where it is.  That needs no advice
;; and changes no setting of the user's: Ediff keeps a layout it finds in
;; order, and a hook local to the control panel puts it in order first.

;;; Code:

(require 'cl-lib)
(require 'ediff)
(require 'ediff-util)
(require 'ediff-wind)
(require 'qwen-companion-compare)
(require 'qwen-companion-proposal)
(require 'qwen-companion-review)
(require 'qwen-companion-review-windows)

(defcustom qwen-companion-ediff-layout 'auto
  "How the two sides of a review are laid out.
`auto' means side by side in a frame that is wide enough, else stacked.
In the control panel of a review, the key | changes it."
  :group 'qwen-companion
  :type '(choice (const :tag "As the frame allows" auto)
                 (const :tag "Side by side" side-by-side)
                 (const :tag "Stacked" stacked)))

(defcustom qwen-companion-ediff-control 'window
  "Where the control panel of a review is.
`window': below the two sides.  `frame': in a frame of its own, where
Emacs draws windows of the system's; with the parameters of
`ediff-control-frame-parameters'."
  :group 'qwen-companion
  :type '(choice (const :tag "In a window below the sides" window)
                 (const :tag "In a frame of its own" frame)))

(defconst qwen-companion-review-ediff--side-width 60
  "Columns that a side needs to be beside another one.")

;;; Keys and help

(defvar qwen-companion-review-ediff--keys
  '(("q" . qwen-companion-diff-bury)
    ("z" . qwen-companion-diff-bury)
    ("TAB" . qwen-companion-diff-switch)
    ("C-c C-c" . qwen-companion-diff-accept)
    ("C-c C-k" . qwen-companion-diff-reject)
    ("u" . qwen-companion-diff-show-unsaved)
    ("C-c C-u" . qwen-companion-diff-show-unsaved)
    ("C-c C-l" . qwen-companion-diff-toggle-line-ends))
  "Keys of the control panel that are ours.")

(defun qwen-companion-review-ediff--set-keys ()
  "Give the control panel our keys; Ediff's own map is left as it is."
  (let ((map (make-sparse-keymap)))
    (set-keymap-parent map (current-local-map))
    (pcase-dolist (`(,key . ,command) qwen-companion-review-ediff--keys)
      (define-key map (kbd key) command))
    (use-local-map map)))

(defun qwen-companion-review-ediff--unsaved-help ()
  "Return the help of the current control panel for unsaved text.
That is a cons cell, short and long, of empty strings where there is none."
  (cond
   ((qwen-companion-proposal-unsaved-copy qwen-companion-proposal-current)
    (cons "u without your text   "
          "  u -without your unsaved text (C)   `cb' copies your change to B: taken over\n"))
   ((qwen-companion-proposal-unsaved qwen-companion-proposal-current)
    (cons "u your unsaved text   "
          "  u -your unsaved text as a third party\n"))
   (t '("" . ""))))

(defun qwen-companion-review-ediff--brief-help ()
  "Return the help shown in the control panel."
  (concat " C-c C-c accept   C-c C-k reject   q put aside   "
          (car (qwen-companion-review-ediff--unsaved-help))
          "n/p next/previous change   "
          (unless ediff-3way-job "a/b keep A's/B's   ")
          "TAB hunk by hunk   "
          "? all keys"))

(defun qwen-companion-review-ediff--long-help ()
  "Return Ediff's own help with our keys on top."
  (concat
   "  C-c C-c -accept the proposal (B) as it is now   C-c C-k -reject it   q -put it aside\n"
   (cdr (qwen-companion-review-ediff--unsaved-help))
   (if ediff-3way-job
       "  Edit B directly; `ab' copies the change at hand from the disk (A) to B: dropped.\n"
     "  Edit B directly; `a' copies the change at hand from the disk (A) to B: dropped.\n")
   "  TAB -the same in one buffer, hunk by hunk; TAB there comes back.\n"
   ediff-long-help-message-head
   (if ediff-3way-job
       ediff-long-help-message-compare3
     ediff-long-help-message-compare2)
   ediff-long-help-message-tail))

;;; Windows of a review

(defun qwen-companion-review-ediff--panel-height (window)
  "Return the lines of a control panel taken from WINDOW."
  (let ((height (window-total-height window)))
    (if ediff-use-long-help-message
        (min (- height qwen-companion-review-windows-tight-height)
             (+ 3 (cl-count ?\n (qwen-companion-review-ediff--long-help))))
      (max 3 (min 4 (/ height 4))))))

(defun qwen-companion-review-ediff--panel-window (window view)
  "Return a window for the control panel of VIEW.
It is taken from WINDOW, or it is that of a frame of its own."
  (if (and (eq qwen-companion-ediff-control 'frame)
           (display-graphic-p (window-frame window)))
      (let ((frame (qwen-companion-review-windows-view-panel-frame view)))
        (unless (frame-live-p frame)
          (setq frame (qwen-companion-review-ediff--make-panel-frame
                       (window-frame window)))
          (setf (qwen-companion-review-windows-view-panel-frame view) frame))
        (set-frame-height frame (if ediff-use-long-help-message
                                    (+ 4 (cl-count ?\n (qwen-companion-review-ediff--long-help)))
                                  4))
        (frame-root-window frame))
    (split-window window
                  (- (qwen-companion-review-ediff--panel-height window))
                  'below)))

(defun qwen-companion-review-ediff--make-panel-frame (frame)
  "Make a frame for a control panel on the display of FRAME.
It takes no focus, and no minibuffer from FRAME: that could not be
deleted as long as it had it."
  (with-selected-frame frame
    (make-frame `((name . "Review")
                  (minibuffer . t)
                  (no-focus-on-map . t)
                  ;; Ediff's own parameters hide it at first.
                  (visibility . t)
                  (width . ,(+ 2 (length (qwen-companion-review-ediff--brief-help))))
                  (height . 4)
                  ,@ediff-control-frame-parameters))))

(defun qwen-companion-review-ediff--split (window parts split)
  "Divide WINDOW into PARTS, two or three; return the new windows in order.
SPLIT is the function that does so, if there is room for what it does."
  (let* ((vertically (eq split #'split-window-vertically))
         (size (/ (if vertically
                      (window-total-height window)
                    (window-total-width window))
                  parts))
         (rest (with-selected-window window
                 (condition-case nil
                     (funcall split size)
                   ;; Too small for that.
                   (error (if vertically
                              (split-window-horizontally)
                            (split-window-vertically)))))))
    (cons window
          (if (= parts 2)
              (list rest)
            (qwen-companion-review-ediff--split rest (1- parts) split)))))

(defun qwen-companion-review-ediff--layout ()
  "Lay out the windows of the review whose control panel is current.
Does nothing when they are in order."
  (unless (ediff-keep-window-config (current-buffer))
    (let* ((control (current-buffer))
           (proposal qwen-companion-proposal-current)
           (view (qwen-companion-proposal-view proposal))
           (kept (qwen-companion-review-windows-view-neighbor view))
           (window-min-height 1)
           (window-combination-resize nil)
           (sides (delq nil (list ediff-buffer-A ediff-buffer-B
                                  (and ediff-3way-job ediff-buffer-C))))
           (split ediff-split-window-function)
           (area (qwen-companion-review-windows-make-room (and (window-live-p kept) kept)))
           (panel (qwen-companion-review-ediff--panel-window area view))
           (windows (qwen-companion-review-ediff--split
                     area (length sides) split)))
      (cl-mapc #'qwen-companion-review-windows-show-buffer windows sides)
      (qwen-companion-review-windows-show-buffer panel control)
      ;; It is not when its window had to go.
      (set-buffer control)
      (setq ediff-multiframe nil
            ediff-window-A (nth 0 windows)
            ediff-window-B (nth 1 windows)
            ediff-window-C (nth 2 windows)
            ediff-control-window panel)
      (select-window panel)
      (ediff-setup-control-buffer control))))

;;; Session

(defun qwen-companion-review-ediff--split-function (frame sides)
  "Return the function that divides a window of FRAME into SIDES, a number."
  (if (pcase qwen-companion-ediff-layout
        ('side-by-side t)
        ('stacked nil)
        (_ (>= (frame-width frame) (* sides qwen-companion-review-ediff--side-width))))
      #'split-window-horizontally
    #'split-window-vertically))

(defun qwen-companion-review-ediff--set-up-control (proposal)
  "Make the current buffer, a new control panel, that of PROPOSAL."
  (setq qwen-companion-proposal-current proposal)
  (setf (qwen-companion-review-windows-view-control
         (qwen-companion-proposal-view proposal))
        (current-buffer))
  (setq-local ediff-window-setup-function #'ediff-setup-windows-plain
              ediff-split-window-function
              (qwen-companion-review-ediff--split-function
               (selected-frame)
               (if (qwen-companion-proposal-unsaved-copy proposal) 3 2))
              ediff-brief-help-message-function
              #'qwen-companion-review-ediff--brief-help
              ediff-long-help-message-function
              #'qwen-companion-review-ediff--long-help
              ;; The mouse stays where it is.
              ediff-grab-mouse nil)
  (add-hook 'ediff-before-setup-windows-hook
            #'qwen-companion-review-ediff--layout nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-review-ediff--control-killed nil t))

(defun qwen-companion-review-ediff--started ()
  "Finish the start of a session; the control panel is current."
  (setq ediff-keep-variants t)
  (when ediff-3way-job
    ;; Ediff has made it writable, as if it were for a merge.
    (with-current-buffer ediff-buffer-C
      (setq buffer-read-only t)))
  (qwen-companion-review-ediff--set-keys)
  (when (> ediff-number-of-differences 0)
    (ediff-next-difference)))

(defun qwen-companion-review-ediff--control-killed ()
  "Put the review aside when its control panel is killed by hand."
  (setq ediff-session-registry
        (delq (current-buffer) ediff-session-registry))
  (qwen-companion-review-windows-control-killed))

(defun qwen-companion-review-ediff--attempt (proposal function)
  "Let FUNCTION have Ediff compare the texts of PROPOSAL.
If Ediff cannot do that, signal its error, and leave the windows as they
were and no buffer or file of Ediff's."
  (let ((windows (current-window-configuration)))
    (condition-case err
        (qwen-companion-compare-with-ediff
         (delq nil (list (qwen-companion-proposal-disk-buffer proposal)
                         (qwen-companion-proposal-buffer proposal)
                         (qwen-companion-proposal-unsaved-copy proposal)))
         function
         (qwen-companion-review-windows-control proposal))
      (error
       (qwen-companion-review-windows-set-configuration windows)
       (signal (car err) (cdr err))))))

(defun qwen-companion-review-ediff--start (proposal)
  "Start an Ediff session for PROPOSAL in the selected frame.
Signal an error where Ediff cannot compare its texts."
  (let* ((control nil)
         (ediff-mode-hook
          (cons (lambda ()
                  (setq control (current-buffer))
                  (qwen-companion-review-ediff--set-up-control proposal))
                ediff-mode-hook))
         (disk (qwen-companion-proposal-disk-buffer proposal))
         (buffer (qwen-companion-proposal-buffer proposal))
         (yours (qwen-companion-proposal-unsaved-copy proposal))
         (startup (list #'qwen-companion-review-ediff--started)))
    (unwind-protect
        (qwen-companion-review-ediff--attempt
         proposal
         (lambda ()
           (if yours
               (ediff-buffers3 disk buffer yours startup)
             (ediff-buffers disk buffer startup))))
      ;; Ediff lets timers and processes run, and one may end the proposal.
      (when (and (buffer-live-p control)
                 (not (qwen-companion-proposal-open-p proposal)))
        (kill-buffer control)))))

(defun qwen-companion-review-ediff--compared-p (control)
  "Return non-nil when Ediff has compared what belongs to CONTROL.
Before that it cannot draw its control panel."
  (numberp (buffer-local-value 'ediff-number-of-differences control)))

(cl-defmethod qwen-companion-review-show ((_style (eql 'ediff)) proposal select)
  "Show PROPOSAL with Ediff, and select it if SELECT is non-nil."
  (let* ((frame (qwen-companion-review-windows-frame proposal))
         (selected (selected-window))
         (control (qwen-companion-review-windows-control proposal)))
    (setf (qwen-companion-proposal-view proposal)
          (qwen-companion-review-windows-new-view proposal frame select))
    (with-selected-frame frame
      (if control
          (with-current-buffer control
            (ediff-recenter 'no-rehighlight))
        (qwen-companion-review-ediff--start proposal)))
    (qwen-companion-review-windows-select
     proposal select selected
     (qwen-companion-proposal-disk-buffer proposal))))

(defun qwen-companion-review-ediff--quit (control frame)
  "End the Ediff session of CONTROL; the windows of FRAME are left alone."
  (let* ((frame (if (frame-live-p frame) frame (selected-frame)))
         (before (current-window-configuration frame))
         ;; That tells it of all windows but this one.
         (selected (frame-selected-window frame))
         (point (window-point selected)))
    (with-selected-window (frame-first-window frame)
      (with-current-buffer control
        ;; Ediff moves the mouse when the control panel has gone already.
        (cl-letf (((default-value 'ediff-grab-mouse) nil))
          (condition-case nil
              (ediff-really-quit nil)
            ;; It has not got far enough, or a hook of the user's fails.
            (error nil))))
      (when (buffer-live-p control)
        (kill-buffer control)))
    (when (frame-live-p frame)
      (qwen-companion-review-windows-set-configuration before)
      ;; Not when it was the control panel's.
      (when (window-live-p selected)
        (set-window-point selected point)))))

(cl-defmethod qwen-companion-review-hide ((_style (eql 'ediff)) proposal)
  "End the Ediff session of PROPOSAL; the windows return as they were.
If the user has put other things on the screen meanwhile, they stay."
  (qwen-companion-review-windows-restore proposal)
  (when-let* ((control (qwen-companion-review-windows-control proposal)))
    (qwen-companion-review-ediff--quit
     control
     (qwen-companion-review-windows-view-frame (qwen-companion-proposal-view proposal))))
  (qwen-companion-review-windows-forget-view proposal))

(cl-defmethod qwen-companion-review-update-sides ((_style (eql 'ediff)) proposal)
  "Let Ediff compare two texts of PROPOSAL or three, in the same place.
The part of the review that was selected still is."
  (let* ((view (qwen-companion-proposal-view proposal))
         (frame (qwen-companion-review-windows-view-frame view))
         (control (qwen-companion-review-windows-control proposal))
         (selected (selected-window))
         (buffer (window-buffer selected)))
    ;; It puts nothing aside when it goes.
    (setf (qwen-companion-review-windows-view-control view) nil)
    (qwen-companion-review-ediff--quit control frame)
    (condition-case err
        (with-selected-frame frame
          (qwen-companion-review-ediff--start proposal))
      (error (qwen-companion-review-fall-back proposal err (eq buffer control))))
    (when-let* ((window (cond
                         ((eq buffer control)
                          (get-buffer-window
                           (qwen-companion-review-windows-control proposal) t))
                         ((and (window-live-p selected)
                               (eq buffer (window-buffer selected)))
                          selected)
                         ((get-buffer-window buffer frame)))))
      (select-window window))))

(cl-defmethod qwen-companion-review-unsaved-changed ((_style (eql 'ediff)) proposal)
  "Let the control panel of PROPOSAL offer to show unsaved text, or not."
  (when-let* ((control (qwen-companion-review-windows-control proposal))
              ((qwen-companion-review-ediff--compared-p control))
              (window (get-buffer-window control t)))
    (with-selected-window window
      (let ((inhibit-read-only t))
        (ediff-setup-control-buffer control)))))

(cl-defmethod qwen-companion-review-refresh ((_style (eql 'ediff)) proposal)
  "Let Ediff compare the two sides of PROPOSAL anew if it is on the screen."
  (when-let* ((control (qwen-companion-review-windows-control proposal))
              ((qwen-companion-review-ediff--compared-p control))
              ((qwen-companion-review-visible-p 'ediff proposal)))
    (let ((selected (selected-window)))
      (condition-case err
          (save-current-buffer
            ;; Ediff loses its way where another window is selected.
            (if-let* ((window (get-buffer-window control t)))
                (select-window window 'norecord)
              (set-buffer control))
            (qwen-companion-review-ediff--attempt proposal #'ediff-update-diffs))
        (error
         (qwen-companion-review-fall-back
          proposal err (eq control (window-buffer selected)))))
      (when (window-live-p selected)
        (select-window selected)))))

(provide 'qwen-companion-review-ediff)
;;; qwen-companion-review-ediff.el ends here
